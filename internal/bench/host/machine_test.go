// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/result"
	"mustang/internal/testkit"
)

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(text))
	testkit.Require(t, err == nil, "%v", err)
	testkit.Succeed(t, w.Close())
	return out.Bytes()
}

// tree builds a file system of small files.
func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for path, text := range files {
		out[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

const clocks = "sys/devices/system/clocksource/clocksource0/available_clocksource"

func TestMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  result.Machine
	}{
		"guest": {map[string]string{
			"proc/cpuinfo": "processor\t: 0\nmodel name\t: Example: 9000\nflags\t\t: fpu " +
				"hypervisor\n\nprocessor\t: 1\nmodel name\t: other\n",
			"proc/meminfo":                   "MemTotal:        1024 kB\nMemFree: 1 kB\n",
			"sys/devices/system/cpu/online":  "0-3,8\n",
			"sys/class/dmi/id/sys_vendor":    "QEMU\n",
			clocks:                           "tsc kvm-clock \n",
			"sys/class/dmi/id/product_uuid":  "secret\n",
			"sys/class/dmi/id/product_name":  "Standard PC\n",
			"proc/sys/kernel/hostname":       "secret\n",
			"sys/devices/system/cpu/present": "0-15\n",
		}, result.Machine{CPUModel: "Example: 9000", CPUs: 5, MemoryBytes: 1 << 20, Virtualisation: "KVM (QEMU)"}},
		"hidden": {map[string]string{
			"proc/cpuinfo": "model name : A\nflags : hypervisor\n", "sys/devices/system/cpu/online": "0",
		}, result.Machine{CPUModel: "A", CPUs: 1, Virtualisation: "yes"}},
		"metal": {map[string]string{
			"proc/cpuinfo": "model name : A\nflags : fpu\n", "sys/devices/system/cpu/online": "0-1",
			clocks: "tsc hpet acpi_pm", "sys/class/dmi/id/sys_vendor": "Maker",
		}, result.Machine{CPUModel: "A", CPUs: 2, Virtualisation: "none"}},
		"arm": {map[string]string{
			"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "sys/devices/system/cpu/online": "0",
		}, result.Machine{CPUModel: "implementer 0x41 part 0xd0c", CPUs: 1, Virtualisation: "unknown"}},
		"nothing": {nil, result.Machine{CPUModel: "unknown", CPUs: runtime.NumCPU(), Virtualisation: "unknown"}},
	} {
		diff := cmp.Diff(tt.want, facts{tree(tt.files)}.machine())
		testkit.Check(t, diff == "", "%s (-want +got):\n%s", name, diff)
	}
}

func TestSettings(t *testing.T) {
	const flaws = "sys/devices/system/cpu/vulnerabilities/"
	files := map[string]string{
		"proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
		flaws + "mds":             "Not affected\n",
		flaws + "spectre_v1":      "Mitigation: barriers\n",
		flaws + "spectre_v2":      "Mitigation: Retpolines\n",
		flaws + "tsa":             "Vulnerable: no microcode\n",
		"proc/config.gz":          string(gzipped(t, "CONFIG_HZ_250=y\nCONFIG_HZ=250\n")),
		"boot/config-6.1.0-amd64": "CONFIG_HZ=100\n",
	}
	want := map[string]string{
		"tcp_congestion_control": "cubic",
		"mitigations":            "mitigated: spectre_v1, spectre_v2; vulnerable: tsa; not affected: 1",
		"config_hz":              "250",
	}
	diff := cmp.Diff(want, facts{tree(files)}.settings("6.1.0-amd64"))
	testkit.Check(t, diff == "", "(-want +got):\n%s", diff)
	delete(files, "proc/config.gz")
	got := (facts{tree(files)}).configHZ("6.1.0-amd64")
	testkit.Check(t, got == "100", "CONFIG_HZ of the file in /boot is %q", got)
	if got := (facts{tree(nil)}).settings("6.1.0"); len(got) != 0 {
		t.Errorf("settings out of nothing: %v", got)
	}
}

// TestDescribeIsCompleteAndAnonymous checks that the description of this machine is complete, and does not
// contain the host name.
func TestDescribeIsCompleteAndAnonymous(t *testing.T) {
	d, err := Describe()
	testkit.Succeed(t, err)
	testkit.Check(t, d.Kernel != "" && d.Machine.Arch != "" && d.Machine.MemoryBytes >= 1<<20 && d.Machine.CPUs >= 1,
		"machine %+v, kernel %q", d.Machine, d.Kernel)
	for _, name := range []string{"tcp_congestion_control", "tcp_available_congestion_control"} {
		testkit.Check(t, d.Settings[name] != "", "setting %s is missing in %v", name, d.Settings)
	}
	testkit.Check(t, d.Versions["go"] == runtime.Version() && d.Versions["mustang"] != "", "versions %v", d.Versions)
	data, err := json.Marshal(d)
	testkit.Succeed(t, err)
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(string(data), host) {
		t.Errorf("the host name %q is in %s", host, data)
	}
}
