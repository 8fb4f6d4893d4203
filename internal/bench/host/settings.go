// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// facts reads the kernel's files below root.
type facts struct{ root fs.FS }

// text returns a file's content without surrounding white space, and "" if it cannot
// be read.
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

// settings returns the kernel settings that influence measurements. Unreadable ones
// are left out.
func (f facts) settings(release string) map[string]string {
	out := map[string]string{}
	put := func(name, value string) {
		if value != "" {
			out[name] = value
		}
	}
	for name, path := range map[string]string{
		"tcp_congestion_control":           "proc/sys/net/ipv4/tcp_congestion_control",
		"tcp_available_congestion_control": "proc/sys/net/ipv4/tcp_available_congestion_control",
		"bpf_jit_enable":                   "proc/sys/net/core/bpf_jit_enable",
		"clocksource":                      "sys/devices/system/clocksource/clocksource0/current_clocksource",
		"cpu_governor":                     "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
		"smt_active":                       "sys/devices/system/cpu/smt/active",
	} {
		put(name, f.text(path))
	}
	put("mitigations", f.mitigations())
	put("config_hz", f.configHZ(release))
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

// configHZ returns the kernel's CONFIG_HZ from /proc/config.gz or /boot, and "" if
// neither has it.
func (f facts) configHZ(release string) string {
	if file, err := f.root.Open("proc/config.gz"); err == nil {
		defer func() { _ = file.Close() }()
		if unzipped, err := gzip.NewReader(file); err == nil {
			return findHZ(unzipped)
		}
	}
	file, err := f.root.Open("boot/config-" + release)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	return findHZ(file)
}

// findHZ returns the value of CONFIG_HZ in a kernel's configuration.
func findHZ(r io.Reader) string {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "CONFIG_HZ="); ok {
			return value
		}
	}
	return ""
}
