#!/bin/bash
# Tries the package on this host, row by row: what a reader of README and docs/install.md does, with
# this distribution's containerd, runc, Docker, AppArmor, systemd and kernel. It installs, registers,
# removes and purges, so the host must be one that can be thrown away, without this shim. Beside it:
# package.deb, and as far as they are to be tried driver/ with files (the host gets a simulated
# driver; else it has a real one), demo and bin/. Usage, as root: rows.sh 1; reboot; rows.sh 2; reboot; rows.sh 3.
# Every row is PASS, FAIL or NOT TESTED with the reason, by tabs; also written to $RESULTS.
set -u
here=$(cd "$(dirname "$0")" && pwd)
part=$1
kept=/var/lib/test-vm # from one part to the next
runtime=io.containerd.nvidia.v2
image=test.local/gpu:latest
old_driver=580.159.04 new_driver=595.71.05
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
mkdir -p $kept
failed=0

result() { # result STATE SECONDS NAME DETAIL
	local line
	line=$(printf '%s\t%s\t%s\t%s' "$@")
	echo "$line"
	[ -z "${RESULTS:-}" ] || echo "$line" >"$RESULTS"
}

# row runs a function, or says why it cannot: the function prints the reason and returns 77.
row() { # row NAME FUNCTION [ARGUMENT...]
	local name=$1 began=$EPOCHREALTIME status detail
	shift
	(
		set -e
		"$@"
	) >$kept/log 2>&1
	status=$?
	detail=$(tail -n 1 $kept/log | tr '\t\r' '  ' | cut -c 1-300)
	began=$(awk "BEGIN {printf \"%.1f\", $EPOCHREALTIME - $began}")
	case $status in
	0) result PASS "$began" "$name" "$detail" ;;
	77) result 'NOT TESTED' - "$name" "$detail" ;;
	*)
		result FAIL "$began" "$name" "$detail"
		tail -n 60 $kept/log
		failed=1
		;;
	esac
}
not_tested() { echo "$@" && exit 77; }

# want reports whether a text has each of the other texts.
want() {
	local text=$1 w
	shift
	for w in "$@"; do
		case $text in *"$w"*) ;; *) echo "no $w in: $text" && return 1 ;; esac
	done
}
refused() { # refused TEXT COMMAND...: the command fails and says the text
	local text=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "not refused: $*: $out"
		return 1
	fi
	want "$out" "$text"
	echo "refused: $out" | tail -n 1
}

simulated() { [ -d "$here/driver/$old_driver" ]; }
docker_version() { dpkg-query -W -f '${Version}' docker.io 2>/dev/null || docker version --format '{{.Server.Version}}'; }
docker_at_least() { dpkg --compare-versions "$(docker_version)" ge "$1"; }
uuid() { nvidia-smi -L | sed -n "$(($1 + 1))s/.*UUID: \(GPU-[^)]*\)).*/\1/p"; }
major() { awk -v name="$1" '$2 == name {print $1; exit}' /proc/devices; }
settings() { (cd /etc && find containerd docker systemd cdi -path containerd/certs.d -prune -o -type f ! -name key.json -exec sha256sum {} + 2>/dev/null | sort -k 2); }

# sees_one checks that a container's nvidia-smi -L printed GPU 0, and nothing else.
sees_one() {
	[ "$(grep -c UUID <<<"$1")" = 1 ] || { echo "not one GPU: $1" && return 1; }
	want "$1" "$(uuid 0)"
}
ctr_run() { # ctr_run GPU ARGUMENT...
	local gpu=$1
	shift
	ctr run --rm --runtime $runtime ${gpu:+--env NVIDIA_VISIBLE_DEVICES=$gpu} $image "t$RANDOM" "$@"
}
ctr_exec() { # by a file: ctr may lose the end of what a short command prints
	local id=$1 file=/run/test-vm-$RANDOM
	shift
	ctr tasks exec --exec-id "e$RANDOM" --log-uri "file://$file" "$id" "$@"
	cat $file
}

# probe prints each GPU's node that a container may open, also one that it made itself.
probe='for m in 0 1 2 254; do rm -f /tmp/n; mknod /tmp/n c 195 $m; e=$( (exec 3<>/tmp/n) 2>&1 ); case "$e" in *"not permitted"*) ;; *) echo "may open 195:$m";; esac; done'
opens_its_own() { # opens_its_own OUTPUT: GPU 0 has minor number 2 in the simulated driver
	! simulated || [ "$1" = "may open 195:2" ] || { echo "the container $1" && return 1; }
}

# ---- part 1

driver_is_there() {
	if ! simulated; then
		nvidia-smi -L
		return
	fi
	"$here/driver/install.sh" $old_driver
	# The first boot with this driver is now.
	modprobe nvidia
	grep NVRM /proc/driver/nvidia/version
}

# make_image makes one image for ctr and Docker from this host's programs.
make_image() {
	local root=$kept/image name
	rm -rf $root
	mkdir -p $root/{bin,tmp,etc,proc,sys,dev}
	for name in sh ls cat grep mknod rm sleep stat echo true; do
		cp -L "$(type -P "$name")" $root/bin/
	done
	for name in $(ldd $root/bin/* /sbin/ldconfig 2>/dev/null | grep -o '/[^ ]*' | grep -v : | sort -u); do
		[ ! -f "$name" ] || case $name in $root/*) ;; *) mkdir -p "$root${name%/*}" && cp -L "$name" "$root$name" ;; esac
	done
	for name in libdl.so.2 libpthread.so.0; do # of glibc before 2.34, for nvidia-smi
		cp -L "$(ldconfig -p | awk -v n=$name '$1 == n {print $NF; exit}')" "$root$(ldconfig -p | awk '$1 == "libc.so.6" {print $NF; exit}' | xargs dirname)/"
	done
	cp -R /etc/ld.so.conf /etc/ld.so.conf.d $root/etc/
	ldconfig -r $root
	tar -C $root -cf - . | docker import - $image
	docker save $image | ctr images import -
}

older_package() { # the same with a lower version and another shim
	local tree=$kept/older
	rm -rf $tree
	dpkg-deb -R "$here/package.deb" $tree
	sed -i 's/^Version: .*/Version: 0~0older/' $tree/DEBIAN/control
	echo older >>$tree/usr/bin/containerd-shim-nvidia-v2
	dpkg-deb -Znone --root-owner-group -b $tree $kept/older.deb
	rm -rf $tree
	settings >$kept/settings
	want "$(dpkg -i $kept/older.deb 2>&1)" 'nvidia-shimctl install'
	[ "$(settings)" = "$(cat $kept/settings)" ] || { echo 'the package registered something' && return 1; }
	sed -i 's/^# *load-kernel-modules = .*/load-kernel-modules = true/' /etc/nvidia-shim/config.toml
	grep -q '^load-kernel-modules = true' /etc/nvidia-shim/config.toml
	dpkg-query -W containerd-shim-nvidia
}

prepare() {
	nvidia-shimctl prepare
	[ "$(stat -c %t /dev/nvidia-uvm)" = "$(printf %x "$(major nvidia-uvm)")" ]
	ls /dev/nvidia* | tr '\n' ' '
}

install_containerd() {
	nvidia-shimctl install --target containerd --restart
	want "$(containerd config dump)" runtimes.nvidia]
	systemctl is-active containerd
}

# Advisories of this distribution's containerd and runc are its own affair: check says them, and
# whatever else it finds fails the row.
check() {
	local out status=0
	out=$(nvidia-shimctl check 2>&1) || status=$?
	echo "$out"
	echo "exit status $status; $(grep -ciE 'CVE|GHSA' <<<"$out") lines about advisories"
	[ $status = 0 ]
}

ctr_one() {
	sees_one "$(ctr_run 0 nvidia-smi -L)"
	opens_its_own "$(ctr_run 0 sh -c "$probe")"
	uuid 0
}
ctr_all() {
	[ "$(ctr_run all nvidia-smi -L)" = "$(nvidia-smi -L)" ]
	echo "$(nvidia-smi -L | wc -l) GPUs"
}
ctr_none() { [ "$(ctr_run '' sh -c 'ls /dev | grep nvidia || echo none')" = none ]; }
ctr_unknown() { refused 'unknown GPU "99"' ctr_run 99 true; }

demo() {
	[ -x "$here/demo" ] && [ -d "$here/bin" ] || not_tested 'no containerd built for this machine'
	cp "$(command -v containerd-shim-nvidia-v2)" "$(command -v nvidia-shimctl)" "$(command -v nvidia-shim-nvml)" "$here/bin/"
	want "$("$here/demo" -bin "$here/bin" 2>&1)" 'This host has an NVIDIA driver' "$(uuid 0)" 'unknown GPU "9"'
	echo "with containerd and runc of bin/tools"
}

docker_by_name() {
	if ! docker_at_least 24.0; then
		refused 'use Docker 24.0 or later' nvidia-shimctl install --target docker --restart
		return
	fi
	nvidia-shimctl install --target docker --restart
	sees_one "$(docker run --rm --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0 $image nvidia-smi -L)"
	opens_its_own "$(docker run --rm --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0 $image sh -c "$probe")"
	docker run -d --name kept --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0 $image sleep infinity
	want "$(nvidia-shimctl plan --container kept)" "$(uuid 0)"
	want "$(nvidia-shimctl status)" kept
	echo "Docker $(docker_version)"
}
docker_none() {
	docker_at_least 24.0 || not_tested "Docker $(docker_version) has no runtime of ours"
	[ "$(docker run --rm --runtime nvidia $image sh -c 'ls /dev | grep nvidia || echo none')" = none ]
}
docker_device() {
	docker_at_least 25.0 || not_tested "Docker $(docker_version) has no CDI"
	nvidia-shimctl install --target docker --cdi
	systemctl restart docker
	sees_one "$(docker run --rm --device nvidia.com/gpu=0 $image nvidia-smi -L)"
	sees_one "$(docker run --rm --runtime nvidia --device nvidia.com/gpu=0 $image nvidia-smi -L)"
	uuid 0
}
docker_gpus() {
	if docker_at_least 29.0; then
		nvidia-shimctl install --target docker --cdi --gpus-flag
		systemctl restart docker
		sees_one "$(docker run --rm --runtime nvidia --gpus device=0 $image nvidia-smi -L)"
	else
		refused "dockerd $(docker version --format '{{.Server.Version}}' | grep -o '^[0-9.]*')" nvidia-shimctl install --target docker --cdi --gpus-flag
	fi
}

# T32: under a profile that is enforced a container reads its mask, cannot write it, and has its GPU.
apparmor_on() { [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ] || not_tested 'AppArmor is not enabled in this kernel'; }
confined() { # confined OUTPUT PROFILE
	want "$1" "$2 (enforce)" 'ModifyDeviceFiles: 0' "$(uuid 0)" 'not written'
	echo "$2 (enforce)"
}
look='cat /proc/self/attr/current; grep Modify /proc/driver/nvidia/params; nvidia-smi -L; (echo 1 >/proc/driver/nvidia/params) 2>/dev/null || echo not written'
apparmor_ctr() {
	apparmor_on
	confined "$(ctr run --rm --runtime $runtime --apparmor-default-profile test-vm --env NVIDIA_VISIBLE_DEVICES=0 $image "t$RANDOM" sh -c "$look")" test-vm
}
apparmor_docker() {
	apparmor_on
	docker_at_least 24.0 || not_tested "Docker $(docker_version) has no runtime of ours"
	confined "$(docker run --rm --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0 $image sh -c "$look")" docker-default
}

# keeps runs what rewrites device rules and looks at the container after each.
keeps() { # keeps SCOPE COMMAND...: the command runs its arguments in the container
	local scope=$1 step
	shift
	[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || not_tested 'this host has cgroup v1'
	systemctl is-active "$scope" || { echo "systemd does not know $scope" && return 1; }
	for step in 'daemon-reload' "set-property --runtime $scope TasksMax=200" 'daemon-reload' 'daemon-reexec' \
		"set-property --runtime $scope MemoryHigh=1G" 'daemon-reload'; do
		# shellcheck disable=SC2086 # words of the command
		systemctl $step
		sleep 1 # systemd writes the rules a moment after it has answered
		sees_one "$("$@" nvidia-smi -L)" || { echo "after systemctl $step" && return 1; }
		opens_its_own "$("$@" sh -c "$probe")" || { echo "after systemctl $step" && return 1; }
	done
	echo "$scope"
}
cgroup_ctr() {
	ctr run --detach --null-io --runtime $runtime --cgroup system.slice:nvidia:kept --env NVIDIA_VISIBLE_DEVICES=0 $image kept sleep infinity
	keeps nvidia-kept.scope ctr_exec kept
}
cgroup_docker() {
	docker_at_least 24.0 || not_tested "Docker $(docker_version) has no runtime of ours"
	docker start kept >/dev/null
	keeps "docker-$(docker inspect -f '{{.Id}}' kept).scope" docker exec kept
	docker update --memory 1g --memory-swap 1g kept
	sees_one "$(docker exec kept nvidia-smi -L)"
	echo "and docker update"
}

upgrade_package() {
	local before
	before=$(settings)
	dpkg --force-confold -i "$here/package.deb"
	[ "$(settings)" = "$before" ] || { echo 'the upgrade changed a registration' && return 1; }
	grep -q '^load-kernel-modules = true' /etc/nvidia-shim/config.toml
	sees_one "$(ctr_exec kept nvidia-smi -L)"
	sees_one "$(ctr_run 0 nvidia-smi -L)"
	! docker_at_least 24.0 || sees_one "$(docker exec kept nvidia-smi -L)"
	dpkg-query -W containerd-shim-nvidia
}

before_reboot() {
	systemctl enable nvidia-shim-prepare
	major nvidia-uvm >$kept/uvm
	simulated || not_tested 'the driver is a real one'
	# The kernel gives the number that is free: another driver took the old one.
	echo "options nvidia-uvm major=$(($(cat $kept/uvm) - 1))" >/etc/modprobe.d/test-vm.conf
	echo "nvidia-uvm has major number $(cat $kept/uvm)"
}

# ---- part 2

prepared_at_boot() {
	systemctl is-active nvidia-shim-prepare
	local n
	for n in nvidiactl nvidia0 nvidia-uvm; do
		[ -c /dev/$n ] || { echo "no /dev/$n" && return 1; }
	done
	[ "$(stat -c %t /dev/nvidia-uvm)" = "$(printf %x "$(major nvidia-uvm)")" ]
	systemctl show -p ExecMainStartTimestampMonotonic --value nvidia-shim-prepare containerd | tr '\n' ' '
}
changed_numbers() {
	simulated || not_tested 'the driver is a real one'
	local was now
	was=$(cat $kept/uvm) now=$(major nvidia-uvm)
	[ "$was" != "$now" ] || { echo "still $now" && return 1; }
	want "$(ctr_run 0 stat -c %t /dev/nvidia-uvm)" "$(printf %x "$now")"
	ctr tasks start --detach --null-io kept
	want "$(ctr_exec kept stat -c %t /dev/nvidia-uvm)" "$(printf %x "$now")"
	sees_one "$(ctr_exec kept nvidia-smi -L)"
	if docker_at_least 24.0; then
		docker start kept
		want "$(docker exec kept stat -c %t /dev/nvidia-uvm)" "$(printf %x "$now")"
		sees_one "$(docker run --rm --device nvidia.com/gpu=0 $image nvidia-smi -L)" # the file of CDI is made again
	fi
	echo "nvidia-uvm $was, now $now; containers from before the reboot started again"
}
upgrade_driver() {
	simulated || not_tested 'the driver is a real one'
	"$here/driver/install.sh" $new_driver
	grep -q $old_driver /proc/driver/nvidia/version
	sees_one "$(ctr_exec kept nvidia-smi -L)"
	sees_one "$(ctr_run 0 nvidia-smi -L)"
	want "$(ctr_run 0 sh -c 'ls /usr/local/nvidia/lib*')" libcuda.so.$old_driver
	echo "files of $new_driver, module $old_driver: containers get the loaded driver's"
}

# ---- part 3

upgraded_driver() {
	simulated || not_tested 'the driver is a real one'
	grep -q $new_driver /proc/driver/nvidia/version
	want "$(ctr_run 0 sh -c 'ls /usr/local/nvidia/lib*')" libcuda.so.$new_driver
	ctr tasks start --detach --null-io kept
	sees_one "$(ctr_exec kept nvidia-smi -L)"
	if docker_at_least 24.0; then
		docker start kept
		sees_one "$(docker exec kept nvidia-smi -L)"
	fi
	grep -o 'Module.*Release' /proc/driver/nvidia/version
}
remove_refused() {
	[ "$(ctr tasks ls | grep -c ' *RUNNING')" -ge 1 ] || ctr tasks start --detach --null-io kept
	refused 'remove them first' dpkg -r containerd-shim-nvidia
	sees_one "$(ctr_exec kept nvidia-smi -L)"
	echo "containers run with it: remove them first"
}
remove() {
	! docker_at_least 24.0 || docker rm -f kept
	ctr tasks kill --signal KILL kept
	sleep 2
	ctr tasks rm kept 2>/dev/null || true
	ctr containers rm kept
	dpkg -r containerd-shim-nvidia
	diff $kept/settings <(settings)
	[ ! -e /usr/bin/nvidia-shimctl ]
	[ ! -e /run/nvidia-shim ] || { ls -R /run/nvidia-shim | head && return 1; }
	systemctl restart containerd docker
	want "$(docker run --rm $image echo stock)" stock
	[ -e /etc/nvidia-shim/config.toml ] # the operator's
}
reinstall() {
	want "$(dpkg -i "$here/package.deb" 2>&1)" 'nvidia-shimctl install'
	grep -q '^load-kernel-modules = true' /etc/nvidia-shim/config.toml
	nvidia-shimctl install --target containerd --restart
	sees_one "$(ctr_run 0 nvidia-smi -L)"
	dpkg-query -W containerd-shim-nvidia
}
purge() {
	dpkg -P containerd-shim-nvidia
	[ ! -e /etc/nvidia-shim ] || { ls -l /etc/nvidia-shim && return 1; }
	diff $kept/settings <(settings)
	[ -z "$(dpkg-query -W -f '${Status}' containerd-shim-nvidia 2>/dev/null | grep -v not-installed)" ]
}

case $part in
1)
	result '' '' "$(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -rm), containerd $(dpkg-query -W -f '${Version}' containerd), runc $(dpkg-query -W -f '${Version}' runc), Docker $(docker_version)" ''
	row 'driver is there' driver_is_there
	row 'image for ctr and Docker' make_image
	row 'package: install' older_package
	row 'prepare' prepare
	row 'install' install_containerd
	row 'check' check
	row 'ctr: one GPU, only that' ctr_one
	row 'ctr: all GPUs' ctr_all
	row 'ctr: none' ctr_none
	row 'ctr: unknown GPU refused' ctr_unknown
	row 'demo' demo
	row 'Docker by name' docker_by_name
	row 'Docker: none' docker_none
	row 'Docker --device nvidia.com/gpu=0' docker_device
	row 'Docker --gpus' docker_gpus
	row 'AppArmor enforced, ctr (T32)' apparmor_ctr
	row 'AppArmor enforced, Docker (T32)' apparmor_docker
	row 'SELinux enforcing (T32)' not_tested 'these machines enforce AppArmor; none is built with a policy of SELinux yet'
	row 'cgroup v2 under systemd, ctr' cgroup_ctr
	row 'cgroup v2 under systemd, Docker' cgroup_docker
	row 'package: upgrade below containers' upgrade_package
	row 'before the reboot' before_reboot
	;;
2)
	row 'prepare at boot' prepared_at_boot
	row 'reboot with changed numbers' changed_numbers
	row 'driver upgrade, old module' upgrade_driver
	;;
3)
	row 'driver upgrade, after reboot' upgraded_driver
	row 'package: removal refused' remove_refused
	row 'package: remove' remove
	row 'package: reinstall' reinstall
	row 'package: purge' purge
	result END '' '' ''
	;;
esac
exit $failed
