function _qkv_run
  for file in */config.toml */*/config.toml; string replace /config.toml "" $file; end
  __fish_complete_directories (commandline -ct)
end
function _qkv_address
  for word in (commandline -opc)
    for file in $word/best.safetensors $word/model.safetensors
      test -f $file && head -c 200000 -- $file | tr ',{' '\n\n' | sed -nE 's/^"([A-Za-z][A-Za-z0-9_.]*)":$/\1/p' && return
    end
  end
end
function _qkv_words_or_file; printf '%s\n' @WORDS@; __fish_complete_path (commandline -ct); end
