# SPDX-License-Identifier: Apache-2.0
# Completion of wsync's programs for fish; a link named after each program loads it.
# Commands, options and choices come from the program itself: PROGRAM --dump-options (cmd/common/opt.h).

function __wsync_urls # of the registry: reads one file, sends no request
    wsync-register list --json 2>/dev/null |
        string replace -rf '.*"type":"endpoint","url":"([^"]*)".*' '$1'
end

function __wsync_tensors # of the sources on the line: reads headers only
    set -l sources
    for w in (commandline -opc)[2..-1]
        if string match -qr '^(synthetic|cuda-ipc):|\.safetensors$|\.index\.json$' -- $w; or test -d $w
            set -a sources $w
        end
    end
    test -n "$sources"; and timeout 2 wsync-list-weights $sources --format names 2>/dev/null
end

function __wsync_sources
    set -l file (string replace -rf '^cuda-ipc:' '' -- (commandline -ct))
    and printf 'cuda-ipc:%s\n' (string match '*.json' -- (__fish_complete_path $file | string split -f 1 \t))
    printf '%s\n' cuda-ipc: hf:
    printf 'synthetic:%s\n' qwen3-0.6b qwen3-8b qwen3-30b-a3b qwen3-235b-a22b deepseek-v3 llama-3.1-8b glm-4.5-air gpt-oss-20b
    __fish_complete_suffix .safetensors
end

# Arguments of complete for what the table calls FILE, "[SOURCE...]", URL.
function __wsync_by_argument
    switch $argv[1]
        case '*URL*'
            printf '%s\n' -x -a '(__wsync_urls)'
        case '*SOURCE*'
            printf '%s\n' -x -a '(__wsync_sources)'
        case '*FILE*' '*DIR*' '*PATH*' '*PYTHON*'
            printf '%s\n' -r -F
        case GLOB
            printf '%s\n' -x -a '(__wsync_tensors)'
        case '*'
            printf '%s\n' -x
    end
end

# Fields of the table: name, letter, argument, kind, choices, help, commands.
function __wsync_load # PROGRAM
    set -l commands
    for line in ($argv[1] --dump-options 2>/dev/null)
        set -l f (string split \t -- $line)
        if test "$f[4]" = command
            set -a commands $f[1]
            complete -c $argv[1] -n "not __fish_seen_subcommand_from $f[1]; and __fish_use_subcommand" -f -a $f[1] -d $f[6]
            test "$f[3]" != -; and complete -c $argv[1] -n "__fish_seen_subcommand_from $f[1]" (__wsync_by_argument $f[3])
            continue
        end
        set -l how
        test "$f[2]" != -; and set -a how -s $f[2]
        if test "$f[5]" != -
            set -a how -x -a (string replace -a '|' ' ' -- $f[5])
        else if test "$f[3]" != -
            set -a how (__wsync_by_argument $f[3])
        end
        complete -c $argv[1] -l $f[1] -d $f[6] $how
    end
    switch $argv[1]
        case wsync-push wsync-list-weights
            complete -c $argv[1] -f -a '(__wsync_sources)'
    end
end

set -l program (basename (status filename) .fish)
if test $program = wsync
    for p in wsync-{push,list-weights,verify,register,ctl,endpoint,gateway,bench}
        command -q $p; and __wsync_load $p
    end
else
    __wsync_load $program
end
