#!/bin/sh
# For programs that need torchrun to start them. `gpumesh-train` itself starts one process per GPU, with the same
# variables, so that most programs do not.
#
#     gpumesh-train --name nano --nodes 3 --gpus-per-node 8 --ranks-per-node 1 -- ./torchrun.sh 8 nano.py --init_from=auto
#
# The first argument is the number of processes of a node. They meet in a file of this attempt on the shared volume, which
# also works where PyTorch has been built without libuv. A failure is left to gpumesh-train: torchrun restarts nothing.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
processes=$1
shift
exec torchrun --nnodes="$NNODES" --nproc-per-node="$processes" --max-restarts=0 \
    --rdzv-backend=c10d --rdzv-conf=store_type=file --rdzv-id="$GPUMESH_RUN-$GPUMESH_ATTEMPT" \
    --rdzv-endpoint="$GPUMESH_RUN_DIR/attempts/rendezvous-$GPUMESH_ATTEMPT" "$@"
