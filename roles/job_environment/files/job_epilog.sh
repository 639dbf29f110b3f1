#!/bin/sh
# Written by gpumesh.cluster. Slurm runs this as root on each node after a job has ended there: it takes the job's
# hostfiles away. A node whose epilog fails is drained, so it never does.
case $SLURM_JOB_ID in
    '' | *[!0-9]*) ;;
    *) rm -f -- "/run/gpumesh/jobs/$SLURM_JOB_ID".* ;;
esac
exit 0
