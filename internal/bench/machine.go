// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/result"
)

// envGuestKernel names the version of the package that the kernel of a guest is
// from; what starts the guest sets it.
const envGuestKernel = "MUSTANG_GUEST_KERNEL"

// describeRun returns the head of a result file: what was asked for, and the
// facts of the machine that move figures. It holds no host's name and no
// address.
func describeRun(o Options, cpus CPUPair) (result.Run, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return result.Run{}, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	f := facts{root: os.DirFS("/")}
	machine := f.machine()
	machine.Arch = unix.ByteSliceToString(uts.Machine[:])
	if !o.timed() {
		o.Duration, o.Warmup = 0, 0
	}
	return result.Run{
		Suite:           o.name(),
		Machine:         machine,
		Clock:           o.clock(),
		Kernel:          release,
		Versions:        versions(),
		Settings:        f.settings(release),
		Pinning:         map[string]int{"client": cpus.Client, "server": cpus.Server},
		Seed:            o.Seed,
		Rounds:          o.Rounds,
		DurationSeconds: o.Duration.Seconds(),
		WarmupSeconds:   o.Warmup.Seconds(),
		Started:         time.Now().UTC(),
		Quick:           o.Quick,
	}, nil
}

// facts reads what the kernel says of itself below root.
type facts struct{ root fs.FS }

// text returns a file's content without the white space around it, empty where
// there is none.
func (f facts) text(path string) string {
	data, err := fs.ReadFile(f.root, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// field returns the value of the first line "name : value" of a file.
func (f facts) field(path, name string) string {
	for line := range strings.Lines(f.text(path)) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// machine describes the hardware.
func (f facts) machine() result.Machine {
	m := result.Machine{
		CPUModel:       f.field("proc/cpuinfo", "model name"),
		CPUs:           countCPUs(f.text("sys/devices/system/cpu/online")),
		Virtualisation: f.virtualisation(),
	}
	if m.CPUModel == "" {
		m.CPUModel = "unknown"
		if part := f.field("proc/cpuinfo", "CPU part"); part != "" { // arm64 has no name
			m.CPUModel = "implementer " + f.field("proc/cpuinfo", "CPU implementer") + " part " + part
		}
	}
	if m.CPUs == 0 {
		m.CPUs = runtime.NumCPU()
	}
	kilobytes, _, _ := strings.Cut(f.field("proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.ParseUint(kilobytes, 10, 64); err == nil {
		m.MemoryBytes = n << 10
	}
	return m
}

// countCPUs counts a list such as "0-3,8", and returns 0 for what is none.
func countCPUs(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		n += to - from + 1
	}
	return n
}

// virtualisation names the hypervisor as far as the guest can tell: by the
// hardware's maker, else by a clock that it offers.
func (f facts) virtualisation() string {
	flags := strings.Fields(f.field("proc/cpuinfo", "flags"))
	hypervisor := false
	for _, flag := range flags {
		hypervisor = hypervisor || flag == "hypervisor"
	}
	clocks := f.text("sys/devices/system/clocksource/clocksource0/available_clocksource")
	for _, known := range []struct{ clock, name string }{
		{"kvm-clock", "KVM"}, {"hyperv", "Hyper-V"}, {"xen", "Xen"},
	} {
		if !strings.Contains(clocks, known.clock) {
			continue
		}
		if vendor := f.text("sys/class/dmi/id/sys_vendor"); vendor != "" {
			return known.name + " (" + vendor + ")"
		}
		return known.name
	}
	vendor := f.text("sys/class/dmi/id/sys_vendor")
	switch {
	case f.text("sys/hypervisor/type") != "":
		return f.text("sys/hypervisor/type")
	case hypervisor && vendor != "":
		return vendor
	case hypervisor:
		return "yes"
	case len(flags) == 0:
		return "unknown" // no x86: the processor does not say
	}
	return "none"
}

// versions returns the versions of the programs that take part. One that is
// not installed is left out.
func versions() map[string]string {
	out := map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		out["mustang"] = buildVersion(info)
	}
	if kernel := os.Getenv(envGuestKernel); kernel != "" {
		out["guest kernel"] = kernel
	}
	for _, tool := range []string{"iptables", "nft"} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		output, err := exec.CommandContext(ctx, tool, "--version").Output()
		cancel()
		if err == nil {
			line, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
			out[tool] = line
		}
	}
	return out
}

// buildVersion returns the module's version, with the commit where the build
// noted one.
func buildVersion(info *debug.BuildInfo) string {
	version := info.Main.Version
	var revision string
	dirty := false
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			revision = setting.Value
		case "vcs.modified":
			dirty = setting.Value == "true"
		}
	}
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	if revision != "" && !strings.Contains(version, revision[:min(12, len(revision))]) {
		version += " " + revision[:min(12, len(revision))]
	}
	if dirty && !strings.Contains(version, "dirty") {
		version += " (modified)"
	}
	return version
}
