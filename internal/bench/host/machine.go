// SPDX-License-Identifier: Apache-2.0

// Package host describes the machine that a run measures on: hardware, kernel, settings, CPUs for processes.
package host

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/result"
	"mustang/internal/version"
)

// EnvGuestKernel is the environment variable that names the kernel package of a guest.
// The process that starts the guest sets it, and [Describe] reports it as a version.
const EnvGuestKernel = "MUSTANG_GUEST_KERNEL"

const versionTimeout = 2 * time.Second // limits one call of a program that prints its version

// Description holds the properties of the machine that influence measurements. It has no host name and no address.
type Description struct {
	Machine result.Machine
	Kernel  string // the kernel's release
	// Versions are the versions of the programs that take part, by name. Programs that are not installed are left out.
	Versions map[string]string
	// Settings are kernel settings by name. Unreadable ones are left out.
	Settings map[string]string
}

// Describe reads the properties of this machine.
func Describe() (Description, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Description{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	f := facts{root: os.DirFS("/")}
	d := Description{Machine: f.machine(), Kernel: unix.ByteSliceToString(uts.Release[:]), Versions: versions()}
	d.Machine.Arch = unix.ByteSliceToString(uts.Machine[:])
	d.Settings = f.settings(d.Kernel)
	return d, nil
}

func (f facts) machine() result.Machine {
	m := result.Machine{
		CPUModel:       f.field("proc/cpuinfo", "model name"),
		CPUs:           countCPUs(f.text("sys/devices/system/cpu/online")),
		Virtualisation: f.virtualisation(),
	}
	if m.CPUModel == "" {
		m.CPUModel = "unknown"
		if part := f.field("proc/cpuinfo", "CPU part"); part != "" { // arm64 lacks a name
			m.CPUModel = "implementer " + f.field("proc/cpuinfo", "CPU implementer") + " part " + part
		}
	}
	m.CPUs = cmp.Or(m.CPUs, runtime.NumCPU())
	m.MemoryBytes, _ = f.memory("MemTotal")
	return m
}

func (f facts) memory(fields ...string) (sum uint64, err error) {
	for _, name := range fields {
		kilobytes, _, _ := strings.Cut(f.field("proc/meminfo", name), " ")
		n, err := strconv.ParseUint(kilobytes, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %s: %w", name, err)
		}
		sum += n << 10
	}
	return sum, nil
}

// KernelMemory returns the bytes of memory in which the kernel keeps rules and maps: slabs that it can't reclaim,
// vmalloc and per-CPU areas. It includes rules and maps of other programs.
func KernelMemory() (uint64, error) {
	return facts{os.DirFS("/")}.memory("SUnreclaim", "VmallocUsed", "Percpu")
}

// countCPUs returns the number of CPUs in a list such as "0-3,8", and 0 if the list is malformed.
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

// virtualisation names the hypervisor, recognised by its clock or the hardware's vendor; "none" on bare metal.
func (f facts) virtualisation() string {
	flags := strings.Fields(f.field("proc/cpuinfo", "flags"))
	vendor := f.text("sys/class/dmi/id/sys_vendor")
	clocks := f.text("sys/devices/system/clocksource/clocksource0/available_clocksource")
	for _, known := range []struct{ clock, name string }{{"kvm-clock", "KVM"}, {"hyperv", "Hyper-V"}, {"xen", "Xen"}} {
		if strings.Contains(clocks, known.clock) && vendor != "" {
			return known.name + " (" + vendor + ")"
		}
		if strings.Contains(clocks, known.clock) {
			return known.name
		}
	}
	if hypervisor := f.text("sys/hypervisor/type"); hypervisor != "" {
		return hypervisor
	}
	if slices.Contains(flags, "hypervisor") {
		return cmp.Or(vendor, "yes")
	}
	if len(flags) == 0 {
		return "unknown" // only x86 processors have the flag
	}
	return "none"
}

// versions returns the versions of mustang, Go, the guest's kernel package and the firewall tools.
func versions() map[string]string {
	out := map[string]string{"go": runtime.Version(), "mustang": version.Program()}
	if kernel := os.Getenv(EnvGuestKernel); kernel != "" {
		out["guest kernel"] = kernel
	}
	for _, tool := range []string{"iptables", "nft"} {
		ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
		output, err := exec.CommandContext(ctx, tool, "--version").Output()
		cancel()
		if err == nil {
			line, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
			out[tool] = line
		}
	}
	return out
}

type facts struct{ root fs.FS }

// text returns a file's content without surrounding white space, and "" if it cannot be read.
func (f facts) text(path string) string {
	data, _ := fs.ReadFile(f.root, path)
	return strings.TrimSpace(string(data))
}

// field returns the value of the first line "name : value" of a file.
func (f facts) field(path, name string) string {
	for line := range strings.Lines(f.text(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// settings returns the kernel settings that influence measurements, without unreadable ones.
func (f facts) settings(release string) map[string]string {
	out := map[string]string{"mitigations": f.mitigations(), "config_hz": f.configHZ(release)}
	for name, path := range map[string]string{
		"tcp_congestion_control":           "proc/sys/net/ipv4/tcp_congestion_control",
		"tcp_available_congestion_control": "proc/sys/net/ipv4/tcp_available_congestion_control",
		"bpf_jit_enable":                   "proc/sys/net/core/bpf_jit_enable",
		"clocksource":                      "sys/devices/system/clocksource/clocksource0/current_clocksource",
		"cpu_governor":                     "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
		"smt_active":                       "sys/devices/system/cpu/smt/active",
	} {
		out[name] = f.text(path)
	}
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out
}

// mitigations summarises the processor flaws that the kernel mitigates (at a cost), the flaws left vulnerable, and
// the number of flaws that do not affect this processor.
func (f facts) mitigations() string {
	const dir = "sys/devices/system/cpu/vulnerabilities"
	entries, err := fs.ReadDir(f.root, dir)
	if err != nil {
		return ""
	}
	var mitigated, open []string
	unaffected := 0
	for _, entry := range entries {
		switch state := f.text(dir + "/" + entry.Name()); {
		case strings.HasPrefix(state, "Mitigation"):
			mitigated = append(mitigated, entry.Name())
		case strings.HasPrefix(state, "Not affected"):
			unaffected++
		default:
			open = append(open, entry.Name())
		}
	}
	var parts []string
	if len(mitigated) > 0 {
		parts = append(parts, "mitigated: "+strings.Join(mitigated, ", "))
	}
	if len(open) > 0 {
		parts = append(parts, "vulnerable: "+strings.Join(open, ", "))
	}
	return strings.Join(append(parts, fmt.Sprintf("not affected: %d", unaffected)), "; ")
}

// configHZ returns the kernel's CONFIG_HZ from /proc/config.gz or /boot, and "" if neither has it.
func (f facts) configHZ(release string) string {
	config := f.text("boot/config-" + release)
	zipped, _ := fs.ReadFile(f.root, "proc/config.gz")
	if unzipped, err := gzip.NewReader(bytes.NewReader(zipped)); err == nil {
		text, _ := io.ReadAll(unzipped)
		config = string(text)
	}
	for line := range strings.Lines(config) {
		if value, ok := strings.CutPrefix(line, "CONFIG_HZ="); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
