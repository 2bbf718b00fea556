"""Games on grids: FrozenLake, Sokoban, Sudoku."""
