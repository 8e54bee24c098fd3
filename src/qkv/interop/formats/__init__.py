"""Files of other programs: GGUF for llama.cpp, ONNX for any runtime of that name, LoRA adapters of PEFT."""
