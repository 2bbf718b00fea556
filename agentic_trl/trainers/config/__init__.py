"""Configuration: TRL's, plus what agents over many turns need; what each method sets, and what is refused."""
