# shellcheck shell=sh
# Written by gpumesh.cluster. Sets the environment of a job in a login to it: pam_slurm_adopt has moved the shell to the
# control group of the job, or SLURM_JOB_ID was passed on.
if [ -z "${GPUMESH_JOB_ENVIRONMENT-}" ] && [ -x /etc/gpumesh/task_prolog ]; then
    case "${SLURM_JOB_ID:+/job_0}$(cat /proc/self/cgroup 2>/dev/null)" in
        */job_[0-9]*) eval "$(/etc/gpumesh/task_prolog --login)" ;;
    esac
fi
