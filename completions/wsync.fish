# SPDX-License-Identifier: Apache-2.0
# Completion of wsync's programs for fish; a link named after each program loads it.
# Kept by hand: tests/cli/completions.bats compares it with what each program says of itself.

function __wsync_urls # of the registry: reads one file, asks nobody
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
    printf '%s\n' cuda-ipc:
    printf 'synthetic:%s\n' qwen3-0.6b qwen3-8b qwen3-30b-a3b qwen3-235b-a22b deepseek-v3 llama-3.1-8b glm-4.5-air gpt-oss-20b
    __fish_complete_suffix .safetensors
end

function __wsync_faults
    for kind in refuse hang drop die flip slow garbage wrong-length
        printf "$kind:%s:1\n" init_weights_update_group update_weights_from_distributed \
            update_weights_from_tensor update_weights_from_disk pause_generation continue_generation destroy_weights_update_group flush_cache \
            update_weight_version generate wire/store wire/connect wire/payload
    end
    printf '%s\n' batch-variant:generate:1 stale:flush_cache:1
    for how in flip truncate permute drop copy swap retype,as=float16 drop-bucket stale-bucket repeat-bucket swap-buckets
        printf "corrupt:%s:1:$how\n" update_weights_from_distributed update_weights_from_tensor \
            update_weights_from_disk complete_weights_update receive_weights receive_weights_ep_scatter
    end
end

# One command defines one option of some programs: the programs, then complete's own arguments.
function __wsync
    for program in (string split , -- $argv[1])
        complete -c wsync-$program $argv[2..-1]
    end
end

set -l all push,list-weights,verify,register,ctl,endpoint,gateway,bench
__wsync $all -l json -d 'one JSON object per line'
__wsync $all -s q -l quiet -d 'nothing but errors'
__wsync $all -s v -l verbose -d 'say what is asked of whom'
__wsync $all -l color -x -a 'auto always never' -d 'colour the output'
__wsync $all -s h -l help -d 'print a summary of the options'
__wsync $all -s V -l version -d 'print the version'

__wsync push,list-weights,verify,register,ctl -l pool -x -d "of the registry's endpoints, those of this pool"
__wsync push,list-weights,verify,register,ctl,gateway,bench -l registry -r -F -d 'the registry'
__wsync $all -l api-key-file -r -F -d 'file with the API key'
__wsync push,list-weights,verify,register,ctl,gateway,bench -l ca-file -r -F -d 'file with trusted certificates'
__wsync push,list-weights,verify,gateway -l config -r -F -d 'the config.json of the model'
__wsync push,list-weights,verify,gateway -l map -r -F -d 'more rules for names'
__wsync push,list-weights,verify,gateway -l sharded -x -a 'tp=2 tp=4 tp=8' -d 'the sources are what ranks saved'
__wsync push,list-weights,verify -l include -x -a '(__wsync_tensors)' -d 'only names like this'
__wsync push,list-weights,verify -l exclude -x -a '(__wsync_tensors)' -d 'no names like this'
__wsync push,list-weights,verify,gateway,bench -l quantize -x -a 'none fp8 fp8-tensor' -d 'make weights FP8'
__wsync push,list-weights,verify,gateway,bench -l block-size -x -a '128x128 64x64' -d 'of a block of FP8'
__wsync push,list-weights,verify,gateway,bench -l skip-modules -x -d 'no FP8 for modules like this'
__wsync push,list-weights,verify,gateway,bench -l scale-rule -x -a 'xorl slime' -d 'how the scale of a block is found'
__wsync push,list-weights,verify,gateway,bench -l ue8m0 -d 'scales are powers of two'
__wsync push,list-weights,verify,gateway,bench -l unpack -d 'send bases of nf4, nvfp4 and FP8 in 16 bits'
__wsync push,list-weights,verify,gateway,bench -l lora -r -F -d 'merge this adapter'
__wsync push,list-weights,verify,gateway,bench -l lora-rounding -x -a 'fold two-step' -d 'of what is merged'
__wsync push,list-weights,verify,gateway,bench -l lora-partial -d 'leave out what binds to nothing'
__wsync push,list-weights,verify,gateway,bench -l correction -r -F -d 'low-rank pairs for the base'
__wsync push,list-weights,verify,gateway,bench -l trust-values -d 'skip checks of values (NaN, replicas) beforehand'
__wsync push,list-weights,verify,gateway,bench -l scratch -x -a '128MiB 256MiB 512MiB 1GiB' -d 'memory that this takes at most'
__wsync push,list-weights,verify,register,ctl,gateway,bench -l connect-timeout -x -d 'to reach an endpoint'
__wsync push,list-weights -f -a '(__wsync_sources)'

__wsync push -s e -l endpoint -x -a '(__wsync_urls)' -d 'push to this endpoint'
__wsync push -l weight-version -x -d 'what the endpoints call these weights'
__wsync push -l stdin -d 'read sources from standard input'
__wsync push -s n -l dry-run -d 'print the plan, change nothing'
__wsync push,verify,gateway,bench -l backend -x -a 'auto gloo nccl tensor disk ipc' -d 'the data plane'
__wsync push,verify,gateway,bench -l disk-dir -r -d 'where a checkpoint is written for disk'
__wsync push,verify,gateway,bench -l disk-path -x -d 'what the servers call it'
__wsync push,verify,gateway,bench -l disk-keep -x -a '0 1 2' -d 'checkpoints that stay in it'
__wsync push,verify,gateway,bench -l gpu -x -a '0 1 2 3 4 5 6 7' -d 'the GPU that nccl sends from, or ipc lends from'
__wsync push,verify,gateway,bench -l ipc-device -x -a 'uuid 0 1 2 3 4 5 6 7' -d 'how ipc names that GPU'
__wsync push,verify,gateway,bench -l transform-on -x -a 'auto cpu gpu' -d 'where tensors are made'
__wsync push,verify,gateway,bench -l nccl-lib -r -F -d 'the libnccl.so.2 to load'
__wsync push,verify,gateway,bench -l nccl-from -r -F -d 'the libnccl.so.2 of this Python'
__wsync push -l asleep -x -a 'weights weights,kv_cache weights,kv_cache,cuda_graph recorded' -d 'memory that they have released'
__wsync push,verify,gateway,bench -l protocol -x -a 'auto update session two-phase receive ep-scatter' -d "the servers' routes"
__wsync push,verify,gateway,bench -l two-phase -x -a 'bucket whole' -d 'what is prepared at once'
__wsync push,verify,gateway,bench -l bucket-size -x -a '128MiB 256MiB 512MiB 1GiB' -d 'most bytes of one request'
__wsync push,verify,gateway,bench -l load-format -x -a 'auto none flattened_bucket safetensors' -d 'how a bucket is broadcast'
__wsync push,verify,gateway,bench -l flush -x -a 'last never every' -d 'which requests drop the cache'
__wsync push,verify,gateway,bench -l pause -x -a 'abort retract in_place none' -d 'what becomes of requests in flight'
__wsync push,verify,gateway,bench -l on-partial -x -a 'pause resume' -d 'what becomes of half an update'
__wsync push -l sender -x -d 'one of several'
__wsync push -l lock -r -F -d 'lock file shared by all senders'
__wsync push -l round -x -d 'step that this sender sends'
__wsync push,gateway,bench -l verify -x -a 'names hash none' -d 'names first, checksums afterwards'
__wsync push,verify,ctl,gateway,bench -l master-address -x -d 'this machine as the endpoints reach it'
__wsync push,verify,ctl,gateway,bench -l master-port -x -d "the store's port"
__wsync push,verify,gateway,bench -l group-name -x -d 'name of the process group'
__wsync push,verify,gateway,bench -l state-dir -r -d 'where pushes are recorded'
__wsync push,verify,gateway,bench -l init-timeout -x -d 'to form the group'
__wsync push,verify,gateway,bench -l bucket-timeout -x -d 'for one bucket'
__wsync push,verify,gateway,bench -l lock-wait -x -d 'for another push at the same server to end'
__wsync push,gateway -s t -l timeout -x -d 'for the whole push'
__wsync push -l trace -r -F -d 'write what ran when'
__wsync push -l metrics -r -F -d 'write how it went'
__wsync push,verify,bench -l progress -x -a 'auto none' -d 'draw a progress line'

__wsync list-weights -l format -x -a 'table names tsv' -d 'how to print the list'
__wsync list-weights -l hash -d "add the XXH3-64 of each tensor's bytes"
__wsync list-weights -l as-sent -d 'as they would be sent'
__wsync list-weights -l runtime -d 'what a server should show'
__wsync list-weights,verify -l tp -x -a '1 2 4 8' -d 'its tensor-parallel size'
__wsync list-weights,verify -l ep -x -a '1 2 4 8' -d 'its expert-parallel size'
__wsync list-weights,verify -l attention-tp -x -a '1 2 4 8' -d 'with data-parallel attention, tp / dp'
__wsync list-weights,verify,ctl -s e -l endpoint -x -a '(__wsync_urls)' -d 'ask this endpoint'
__wsync list-weights -l rank -x -d 'of this tensor-parallel rank'
__wsync list-weights -l prefix -x -d 'only names that begin so'
__wsync list-weights -s t -l timeout -x -d "for one endpoint's answer"

# The commands, until there is one; then what that one takes.
function __wsync_commands
    set -l commands $argv[2..-1]
    __wsync $argv[1] -f -n "not __fish_seen_subcommand_from $commands" -a "$commands"
end

__wsync_commands verify names weights scales flags routing logprobs
__wsync verify -n '__fish_seen_subcommand_from names weights scales' -a '(__wsync_sources)'
__wsync verify -n '__fish_seen_subcommand_from flags routing logprobs' -F -d 'settings or answers'
__wsync verify -s t -l timeout -x -d "for the endpoints' answers"
__wsync verify -l list -r -F -d 'a saved listing'
__wsync verify -l scan -d 'read every tensor'
__wsync verify -l against -r -F -d 'the weights before they were quantized'
__wsync verify -l max-error -x -a '0.05 0.15' -d 'how far off a tensor may be'
__wsync verify -l samples -x -d 'parameters to compare number by number'
__wsync verify -l seed -x -d 'chooses them'
__wsync verify -l threads -x -a '1 2 4 8' -d 'that read the source'
__wsync verify -l expect -x -d 'the endpoints must have this setting'
__wsync verify -l npy -r -F -d 'write the experts for numpy'
__wsync verify -l max-difference -x -a '0 0.01' -d 'allowed between two logarithms'
__wsync verify -l mean-difference -x -a '0.01 decode=0.01' -d 'allowed on average'
__wsync verify -l max-k3 -x -a '0.001 decode=0.001' -d 'allowed as divergence'
__wsync verify -l teacher-forced -d 'judge the tokens that the first side drew'
__wsync verify -l batched -d 'prompts alone and in one request agree'
__wsync verify -l cached -d 'with the cache of prefixes and without agree'
__wsync verify -l prompt -x -d 'ask this'
__wsync verify -l prompts -r -F -d 'ask these'
__wsync verify -l max-new-tokens -x -a '1 16 64' -d 'to draw after each prompt'
__wsync verify -l parallel -x -a '1 4 16' -d 'prompts at the same time'
__wsync verify -l flush-first -d 'drop the cache before'
__wsync verify -l save -r -F -d 'keep the answers'
__wsync verify -l min-equal -x -a '0.99 0.999' -d 'of the rows of two answers'
__wsync verify -l twice -d 'push once more: nothing may change'
__wsync verify -l reset -d 'push onto random numbers'
__wsync verify -l yes -d 'the endpoints may be without weights meanwhile'
__wsync verify -l limit -x -d 'findings to show of a group'

__wsync_commands register add remove list check
__wsync register -f -n '__fish_seen_subcommand_from remove' -a '(__wsync_urls)'
__wsync register -l world-size -x -d 'ranks of the endpoint'
__wsync register -l no-check -d 'do not ask the endpoint'
__wsync register,ctl -s t -l timeout -x -d 'for all answers'

__wsync_commands ctl info health pause resume flush repair sleep wake init-group destroy-group version
__wsync push,verify,ctl,gateway,bench -l lineage -x -a 'auto sglang-0.4 sglang-0.5 sglang-2026 xorl-legacy xorl session slime' -d 'which family of servers'
__wsync ctl -l mode -x -a 'abort retract in_place' -d 'what becomes of running requests'
__wsync ctl -l tags -x -a 'weights kv_cache cuda_graph weights,kv_cache' -d 'which memory'
__wsync ctl -l wait -x -d 'keep asking a busy endpoint'
__wsync ctl -l state-dir -r -d 'where pushes are recorded'
__wsync ctl -l keep -d 'hold the group until Ctrl-C'
__wsync ctl -l again -d 'push again what was pushed'
__wsync ctl -s n -l dry-run -d 'ask and change nothing'
__wsync ctl -l resume-partial -d 'also resume what holds old and new weights'
__wsync ctl -l assume-dead -d 'also after processes on other machines'
__wsync ctl -l forget -d 'ask nobody and forget'

__wsync endpoint -f
__wsync endpoint -l listen -x -a '127.0.0.1:0 127.0.0.1:30000' -d 'answer at this address'
__wsync endpoint -l tp -x -a '1 2 4 8' -d 'tensor-parallel ranks'
__wsync endpoint -l ep -x -a '1 2 4 8' -d 'expert-parallel groups'
__wsync endpoint -l model -x -a '(__fish_complete_directories)' -d 'load as a server of this model'
__wsync endpoint -l lineage -x -a 'lenient sglang-0.4 sglang-0.5 sglang-2026 xorl-legacy xorl session slime' -d 'whose routes and deaths'
__wsync endpoint -l checksums -d 'report them where the lineage does not'
__wsync endpoint -l keep -x -a 'memory hash none' -d 'what stays of received weights'
__wsync endpoint -l torch -x -a '2.6 1.13' -d 'behave like this torch'
__wsync endpoint -l backend -x -a 'gloo nccl ipc' -d 'what it receives over'
__wsync endpoint -l gpu -x -a '0 1 2 3 4 5 6 7' -d "rank 0's GPU"
__wsync endpoint -l shared-gpu -d "another process's rank is on it too"
__wsync endpoint -l nccl-init -x -a 'auto lazy eager' -d 'when it joins'
__wsync endpoint -l nccl-lib -r -F -d 'the libnccl.so.2 to load'
__wsync endpoint -l nccl-from -r -F -d 'the libnccl.so.2 of this Python'
__wsync endpoint -l model-path -x -d 'model path to report'
__wsync endpoint -l served-model-name -x -d 'model name to report'
__wsync endpoint -l dtype -x -a 'bfloat16 float16 float32' -d 'type to report'
__wsync endpoint -l quantization -x -d 'What it was told; fp8 is made while loading'
__wsync endpoint -l memory-saver -x -a 'none drop backup' -d 'what becomes of released weights'
__wsync endpoint -l return-routed-experts -d 'tell the experts of tokens'
__wsync endpoint -l init-timeout -x -d 'for a group to form'
__wsync endpoint -l receive-timeout -x -d 'for the bytes of one update'
__wsync endpoint -l ready-timeout -x -d 'for a prepared receive to begin'
__wsync endpoint -l complete-timeout -x -d 'for it to end'
__wsync endpoint -l busy -x -d 'emulate running requests'
__wsync endpoint -l fault -x -a '(__wsync_faults)' -d 'misbehave at one call'
__wsync endpoint -l fault-delay -x -d 'of faults that are slow'
__wsync endpoint -l restart-on-death -d 'come back empty after a death'

__wsync gateway -f
__wsync gateway -l listen -x -a '127.0.0.1:0 127.0.0.1:6000' -d 'answer at this address'
__wsync gateway -l require-key-file -r -F -d 'answer only who sends this key'
__wsync gateway -l source -x -a '(__wsync_sources)' -d 'what is pushed where a request names none'
__wsync gateway -l source-root -x -a '(__fish_complete_directories)' -d 'where requests may have sources from'
__wsync gateway -l allow-host -x -d 'which hosts may be registered'

__wsync_commands bench kernels load control transport push sweep plan
__wsync bench -n '__fish_seen_subcommand_from load push sweep plan' -a '(__wsync_sources)'
__wsync bench -l samples -x -d 'to take of each'
__wsync bench -l warmup -x -d 'to take before and drop'
__wsync bench -l time -x -a '10s 1m 10m' -d 'no more samples of a measurement after so long'
__wsync bench -l csv -d 'comma-separated values'
__wsync bench -l plot -r -F -d 'draw the rows'
__wsync bench -l check -d 'look at what was made or received'
__wsync bench -l size -x -a '64MiB 256MiB 1GiB' -d "bytes of a kernel's input"
__wsync bench -l model -x -a 'qwen3-0.6b qwen3-8b qwen3-30b-a3b qwen3-235b-a22b deepseek-v3' -d 'shapes of a known model'
__wsync bench -l on -x -a 'cpu gpu' -d 'whose kernels'
__wsync bench -l to -x -a 'host gpu' -d 'into memory of this process, or of a GPU'
__wsync bench -l cold -d 'drop the files from the page cache first'
__wsync bench -l most -x -d 'read about so many bytes'
__wsync bench -s e -l endpoint -x -a '(__wsync_urls)' -d 'measure this endpoint'
__wsync bench -l pool -x -d "of the registry's endpoints, those of this pool"
__wsync bench -l local -x -a '1 2 4 8' -d 'so many endpoints of our own'
__wsync bench -l keep -x -a 'none hash memory' -d 'what those do with weights'
__wsync bench -l tp -x -a '1 2 4 8' -d 'tensor-parallel ranks'
__wsync bench -l receivers -x -a '1 2 4 8' -d 'of our own, or on paper'
__wsync bench -l remote -x -a '1 2 4 8' -d 'that join from elsewhere'
__wsync bench -l listen -x -d 'where those find us'
__wsync bench -l join -x -d 'be a receiver of who listens there'
__wsync bench -l host -x -d 'our own address'
__wsync bench -l min-size -x -d 'of a bucket'
__wsync bench -l max-size -x -d 'of a bucket'
__wsync bench -l count -x -a '1 8 20' -d 'broadcasts in a row'
__wsync bench -l total -x -a '256MiB 1GiB 4GiB' -d 'as many as make so many bytes'
__wsync bench -l factor -x -a '2 4 8' -d 'from one size to the next'
__wsync bench -l keep-group -d 'one group for all samples'
__wsync bench -l alone -d 'measure source and wire alone too'
__wsync bench -l buckets -x -a '64MiB 256MiB 512MiB 1GiB' -d 'a bucket size to try'
__wsync bench -l formats -x -a 'none flattened_bucket' -d 'a load format to try'
__wsync bench -l quantizations -x -a 'none fp8 fp8-tensor' -d 'a --quantize to try'
__wsync bench -l link -x -a '100Gb 200Gb 400Gb 800Gb' -d 'of each sender and endpoint, one way'
__wsync bench -l senders -x -a '1 2 4 8' -d 'that send a share each'
__wsync bench -l at-once -d 'senders do not take turns'
__wsync bench -l endpoints -x -a '1 2 4 8' -d 'that receive all of it'
__wsync bench -l nics -x -a '1 2 4 8' -d 'links of each endpoint'
__wsync bench -l source-rate -x -d 'what a sender reads at'
__wsync bench -l make-rate -x -d 'what it changes tensors at'
__wsync bench -l apply-rate -x -d 'what a rank loads at'
__wsync bench -l per-bucket -x -d 'beside its bytes'
__wsync bench -l fixed -x -d 'to connect, pause, flush and resume'
__wsync bench -l tree -d "gloo's tree, not NCCL's ring"
__wsync bench -l no-pipelining -d 'stages follow each other'
__wsync bench -s t -l timeout -x -d 'for a request, a broadcast, and the group'
