"""Text that needs no files: stories of known entropy, and invented facts. numpy only."""
