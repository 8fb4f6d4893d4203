// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"strings"
)

// facts reads the kernel's files below root.
type facts struct{ root fs.FS }

// text returns a file's content without surrounding white space, and "" if it cannot be read.
func (f facts) text(path string) string {
	data, _ := fs.ReadFile(f.root, path)
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
