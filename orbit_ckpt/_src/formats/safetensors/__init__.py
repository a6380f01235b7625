"""safetensors files, and directories of them."""
