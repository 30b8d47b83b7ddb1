"""Other programs' files: Hugging Face folders of models and tokenizers, read and written."""
