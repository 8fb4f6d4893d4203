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
	"time"

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

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]CPUPair{
		"0":   {Client: 0, Server: 0, Set: true},
		"1,0": {Client: 1, Server: 0, Set: true},
	} {
		got, err := ParseCPUs(text)
		testkit.Check(t, err == nil && got == want, "%q: %+v, %v; want %+v", text, got, err, want)
	}
	for _, text := range []string{"", "x", "0,", "0,1,2", "-1", "0,4096"} {
		got, err := ParseCPUs(text)
		testkit.Check(t, err != nil, "%q parsed as %+v", text, got)
	}
}

func TestDefaultIsOneUsableCPU(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	testkit.Check(t, err == nil && p.Client == p.Server && p.Set, "%+v, %v; want the same CPU for both", p, err)
	_, err = (CPUPair{Client: 1000, Server: 0, Set: true}).Resolve()
	testkit.Check(t, err != nil, "CPU 1000 was accepted")
}

func TestOtherCPUIsNotTheServers(t *testing.T) {
	p, err := CPUPair{}.Resolve()
	testkit.Succeed(t, err)
	if cpu, err := p.Other(); runtime.NumCPU() > 1 != (err == nil) || err == nil && cpu == p.Server {
		t.Errorf("CPU %d beside %+v, %v", cpu, p, err)
	}
	cpu, err := (CPUPair{Client: 0, Server: 1}).Other()
	testkit.Check(t, err != nil, "CPU %d, though client and server run on two", cpu)
}

// TestQuota reads what quotas took of control groups.
func TestQuota(t *testing.T) {
	for name, test := range map[string]struct {
		groups string
		stats  map[string]string
		want   time.Duration
	}{
		"none": {"3:cpu,cpuacct:/a\n", map[string]string{"sys/fs/cgroup/cpu.stat": "throttled_usec 7\n"}, 0},
		"with the groups above": {"0::/a.slice/b\n", map[string]string{
			"sys/fs/cgroup/cpu.stat":           "usage_usec 9\n",
			"sys/fs/cgroup/a.slice/cpu.stat":   "usage_usec 9\nnr_periods 9\nnr_throttled 2\nthrottled_usec 2000\n",
			"sys/fs/cgroup/a.slice/b/cpu.stat": "nr_throttled 1\nthrottled_usec 500",
			"sys/fs/cgroup/a.slice/c/cpu.stat": "throttled_usec 70000\n",
		}, 2500 * time.Microsecond},
		"a container's group": {"0::/\n", map[string]string{"sys/fs/cgroup/cpu.stat": "throttled_usec 7\n",
			"sys/fs/cpu.stat": "throttled_usec 9\n"}, 7 * time.Microsecond},
		"outside of the mount": {"0::/../b\n", map[string]string{"sys/fs/cgroup/b/cpu.stat": "throttled_usec 7\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/self/cgroup": {Data: []byte(test.groups)}}
			for file, text := range test.stats {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			got := findQuota(root).Throttled()
			testkit.Check(t, got == test.want, "%v, want %v", got, test.want)
		})
	}
}
