"""Publishing on the Hugging Face Hub: the model card and the upload."""
