#!/bin/sh
# A simulated nvidia-smi, written by `llmgw sim hardware`. The facts of the GPUs are in gpus/, the memory that
# simulated engines hold in used/ as UUID.PID: it counts while that process lives. No other program is started.
set -f
LC_ALL=C
spaces=$IFS
here=${0%/*}
[ -d "$here/gpus" ] || here=@DIRECTORY@

# Every field that can be asked for, with its unit in the heading.
@UNITS@
a_pid= a_process_name= a_name= a_gpu_uuid= a_gpu_name= a_gpu_bus_id=
a_used_memory=' [MiB]' a_used_gpu_memory=' [MiB]'

usage() {
    printf "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"
    exit 2
}

# variable PREFIX FIELD: sets $name to PREFIX_FIELD with the dots of FIELD made underscores.
variable() {
    IFS=.
    set -- "$1" $2
    prefix=$1
    shift
    IFS=_
    name=${prefix}_$*
    IFS=$spaces
}

# heading PREFIX FIELDS…: sets $line, and refuses what is no field.
heading() {
    prefix=$1
    shift
    line=
    for field in "$@"; do
        known=
        case $field in
        '' | *[!A-Za-z0-9_.]*) ;;
        *)
            variable "$prefix" "$field"
            eval "known=\${$name+yes} unit=\${$name-}"
            ;;
        esac
        if [ -z "$known" ]; then
            printf 'Field "%s" is not a valid field to query.\n\n' "$field"
            exit 2
        fi
        [ -n "$units" ] || unit=
        line=$line${line:+, }$field$unit
    done
}

# alive PID START: is that the process which said so, and does it still run? A zombie holds no memory.
alive() {
    if [ ! -r /proc/self/stat ]; then
        kill -0 "$1" 2>/dev/null
        return
    fi
    stat=
    { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    set -- "$2" ${stat##*) }
    case $2 in Z | X | '') return 1 ;; esac
    [ -z "$1" ] || [ "$1" = "${21}" ]
}

# holders UUID: sets $held to the MiB held on that GPU and calls `holder PID MIB` for each living process.
holders() {
    held=0
    set +f
    for file in "$here/used/$1".*; do
        set -f
        pid=${file##*.}
        case $pid in '' | *[!0-9]*) continue ;; esac
        mib= start=
        { read -r mib start <"$file"; } 2>/dev/null
        case $mib in '' | *[!0-9]*) continue ;; esac
        alive "$pid" "$start" || continue
        held=$((held + mib))
        [ -z "$show_holders" ] || holder "$pid" "$mib"
    done
    set -f
}

holder() {
    process=
    { IFS= read -r process <"/proc/$1/comm"; } 2>/dev/null
    a_pid=$1 a_process_name=${process:-[Not Found]} a_name=${process:-[Not Found]}
    a_gpu_uuid=$f_uuid a_gpu_name=$f_name a_gpu_bus_id=$f_gpu_bus_id
    a_used_memory="$2 MiB" a_used_gpu_memory="$2 MiB"
    cells a $fields
    printf '%s\n' "$line"
}

# cells PREFIX FIELDS…: sets $line to the values.
cells() {
    prefix=$1
    shift
    line=
    for field in "$@"; do
        if [ "$state" = lost ]; then
            value='[Unknown Error]'
        else
            variable "$prefix" "$field"
            eval "value=\$$name"
        fi
        if [ -z "$units" ]; then
            case $value in [0-9]*) value=${value%% *} ;; esac
        fi
        line=$line${line:+, }$value
    done
}

# load FILE: the facts of one GPU, and what it uses now.
load() {
    . "$1"
    holders "$f_uuid"
    reserved=${f_memory_reserved%% *}
    [ -z "$unified" ] || reserved=0
    [ "$held" -le "$((memory_total - reserved))" ] || held=$((memory_total - reserved))
    [ "$state" != reset ] || held=0
    f_memory_used="$held MiB"
    f_memory_free="$((memory_total - reserved - held)) MiB"
    [ -z "$unified" ] || f_memory_used='[N/A]' f_memory_free='[N/A]'
}

wanted() {
    case ,$ids, in ,, | *",$f_index,"* | *",$f_uuid,"* | *",$f_pci_bus_id,"*) return 0 ;; esac
    return 1
}

lost_line() {
    printf 'Unable to determine the device handle for GPU%s: Unknown Error\n' "${f_pci_bus_id#0000}"
}

unified=
action= fields= ids= header=yes units=yes format= show_holders=
while [ $# -gt 0 ]; do
    case $1 in
    --query-gpu=*) action=gpus fields=${1#*=} ;;
    --query-compute-apps=* | --query-apps=*) action=apps fields=${1#*=} ;;
    --format=*) format=${1#*=} ;;
    --id=*) ids=${1#*=} ;;
    -i | -id)
        [ $# -gt 1 ] || usage
        shift
        ids=$1
        ;;
    -L | --list-gpus) action=list ;;
    topo) action=topo ;;
    -m | --matrix) [ "$action" = topo ] || usage ;;
    -h | --help) action=help ;;
    --version) action=version ;;
    *) usage ;;
    esac
    shift
done
IFS=,
set -- $format
IFS=$spaces
for option in "$@"; do
    case ${option# } in
    csv) ;;
    noheader) header= ;;
    nounits) units= ;;
    *) usage ;;
    esac
done
IFS=,
set -- $fields
IFS=$spaces
fields=$*

set +f
set -- "$here"/gpus/*
set -f
[ -e "$1" ] || set --
if [ $# -eq 0 ] && [ "$action" != help ] && [ "$action" != version ]; then
    echo 'No devices were found'
    exit 6
fi

case $action in
gpus)
    [ -n "$format" ] || usage
    heading u $fields
    [ -z "$header" ] || printf '%s\n' "$line"
    for file in "$@"; do
        load "$file"
        wanted || continue
        [ "$state" != lost ] || lost_line
        cells f $fields
        printf '%s\n' "$line"
    done
    ;;
apps)
    [ -n "$format" ] || usage
    heading a $fields
    [ -z "$header" ] || printf '%s\n' "$line"
    show_holders=yes
    for file in "$@"; do
        . "$file"
        wanted || continue
        [ "$state" = lost ] || holders "$f_uuid"
    done
    ;;
list)
    for file in "$@"; do
        . "$file"
        wanted || continue
        if [ "$state" = lost ]; then lost_line; else
            printf 'GPU %s: %s (UUID: %s)\n' "$f_index" "$f_name" "$f_uuid"
        fi
    done
    ;;
topo)
    while IFS= read -r line; do printf '%s\n' "$line"; done <"$here/topology"
    ;;
help)
    echo 'nvidia-smi [-L | --query-gpu=FIELDS --format=csv[,noheader][,nounits] | --query-compute-apps=FIELDS'
    echo '--format=…] [-i INDEX|UUID|BUS,…] [topo -m] [--version]     (simulated by llmgw)'
    ;;
version)
    [ $# -eq 0 ] || . "$1"
    printf 'NVIDIA-SMI version  : %s\n' "${f_driver_version-unknown}"
    printf 'NVML version        : %s\n' "${f_driver_version-unknown}"
    printf 'DRIVER version      : %s\n' "${f_driver_version-unknown}"
    printf 'CUDA Version        : %s\n' "${cuda_version-unknown}"
    ;;
*)
    rule='+-----------------------------------------------------------------------------+'
    printf '%s\n' "$rule"
    . "$1"
    printf '| NVIDIA-SMI %-15s Driver Version: %-15s (simulated)      |\n' \
        "$f_driver_version" "$f_driver_version"
    printf '%s\n' "$rule"
    for file in "$@"; do
        load "$file"
        if [ "$state" = lost ]; then lost_line; continue; fi
        printf '| %3s  %-28.28s %16s %8sMiB / %8sMiB |\n' \
            "$f_index" "$f_name" "$f_pci_bus_id" "$held" "$memory_total"
    done
    printf '%s\n' "$rule"
    ;;
esac
exit 0
