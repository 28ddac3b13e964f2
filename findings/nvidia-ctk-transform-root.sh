#!/usr/bin/env bash
# nvidia-ctk 1.20.2: `cdi transform root` compares paths as texts, not by component. With
# --from=/run/nvidia/driver a path below /run/nvidia/driver-extra is changed too, and to one that
# nothing has: "/-extra/lib" for --to=/. A mount of a CDI file then fails, or is of another file.
#
# Expected before the first run: paths outside the old root stay as they are.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat > go.mod <<'MOD'
module finding

go 1.26

tool github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk
MOD
GOFLAGS=-mod=mod go get github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.20.2 2>/dev/null
GOFLAGS=-mod=mod go build -o nvidia-ctk github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk 2>/dev/null
cat > spec.yaml <<'SPEC'
cdiVersion: 0.5.0
kind: example.com/gpu
devices:
  - name: "0"
    containerEdits:
      mounts:
        - {hostPath: /run/nvidia/driver/usr/lib/a, containerPath: /a}
        - {hostPath: /run/nvidia/driver-extra/lib/b, containerPath: /b}
SPEC
./nvidia-ctk --quiet cdi transform root --from=/run/nvidia/driver --to=/ --input=spec.yaml --output=out.yaml
paths=$(sed -n 's/.*hostPath: //p' out.yaml)
echo "$paths"
[ "$paths" = "/usr/lib/a
/-extra/lib/b" ]
