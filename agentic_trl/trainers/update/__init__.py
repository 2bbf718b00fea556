"""An update: rows with their credit, the critic, and each paper's part of the loss."""
