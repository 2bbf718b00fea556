"""A model of values: a transformer body with a scalar head."""

from jaxtyping import Float
from torch import Tensor, nn


class ValueModel(nn.Module):
    """A transformer body with a scalar head."""

    def __init__(self, body: nn.Module, hidden_size: int) -> None:
        """Put a head on a body.

        Args:
            body: A transformers model without language-model head.
            hidden_size: Width of its last hidden state.
        """
        super().__init__()
        self.body = body
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)  # all values start at 0, the mean of whitened returns
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Float[Tensor, "row token"]:
        """Return the head's output at every position, in float32.

        Args:
            input_ids: Token ids.
            attention_mask: 1 at real tokens.
        """
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        value: Tensor = self.head(hidden.to(self.head.weight.dtype))[..., 0].float()
        return value
