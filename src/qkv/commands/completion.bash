_qkv_run() {
  local folder
  for folder in "$1"*/ "$1"*/*/; do [ -e "${folder}config.toml" ] && printf '%s\n' "${folder%/}"; done
  compgen -d -- "$1"
}
_qkv_address() {
  local word file
  for word in "${COMP_WORDS[@]}"; do
    for file in "$word/best.safetensors" "$word/model.safetensors"; do
      [ -f "$file" ] && compgen -W "$(head -c 200000 -- "$file" | tr ',{' '\n\n' | sed -nE 's/^"([A-Za-z][A-Za-z0-9_.]*)":$/\1/p')" -- "$1" && return
    done
  done
}
_qkv_words_or_file() { compgen -W "@WORDS@" -- "$1"; compgen -f -- "$1"; }
