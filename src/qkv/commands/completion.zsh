_qkv_run() {
  local -a runs; runs=(*/config.toml(N:h) */*/config.toml(N:h)); compadd -a runs; _files -/
}
_qkv_address() {
  local word file
  for word in $words; do
    for file in $word/best.safetensors $word/model.safetensors; do
      [[ -f $file ]] && compadd -- ${(f)"$(head -c 200000 -- $file | tr ',{' '\n\n' | sed -nE 's/^"([A-Za-z][A-Za-z0-9_.]*)":$/\1/p')"} && return
    done
  done
}
_qkv_words_or_file() { compadd -- @WORDS@; _files }
