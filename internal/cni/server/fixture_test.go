// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// fixture is a host with the plugin, and an uplink.
type fixture struct {
	t      testing.TB
	host   *netns.Namespace
	dir    string
	plugin cni.Plugin
	socket string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	f := &fixture{t: t, host: testkit.Namespace(t, "host"), dir: t.TempDir()}
	outside := testkit.Namespace(t, "outside")
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.host, Name: "uplink"}, rtnl.VethEnd{Namespace: outside,
		Name: "far"}, 1500))
	up := rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Up: true}
	f.must(rtnl.In(f.host).Configure("uplink", up))
	f.must(rtnl.In(outside).Configure("far", rtnl.DeviceConfig{Up: true}))
	f.plugin = cni.Plugin{
		StateDir: filepath.Join(f.dir, "state"), RunDir: filepath.Join(f.dir, "run"), BPFRoot: kept.Root(t),
		Cgroup: testkit.Cgroup(t),
	}
	f.socket = filepath.Join(f.dir, "agent", "cni.sock")
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	testkit.Succeed(f.t, err)
}

// options configure a server of the built plugin.
func (f *fixture) options() Options {
	f.t.Helper()
	return Options{Socket: f.socket, Host: f.host, Plugin: f.plugin}
}

// served counts the verbs of a server.
type served struct {
	mu    sync.Mutex
	verbs map[string]int
}

func (s *served) observe(verb string, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed {
		verb += " failed"
	}
	s.verbs[verb]++
}

// count returns how many there were of a verb since the last call.
func (s *served) count(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.verbs[verb]
	delete(s.verbs, verb)
	return n
}

// left returns the verbs that count has not returned.
func (s *served) left() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.verbs)
}

// serve runs a server in this process until the test or stop ends it.
func (f *fixture) serve(o Options) (_ *served, stop func()) {
	f.t.Helper()
	counts := &served{verbs: map[string]int{}}
	o.Observe = func(verb string, _ time.Duration, failed bool) { counts.observe(verb, failed) }
	s := testkit.Must(Listen(o))(f.t)
	return counts, f.runs(s)
}

func (f *fixture) runs(s *Server) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		f.must(<-ended)
	})
	f.t.Cleanup(stop)
	return stop
}

// program builds the plugin, once, and puts its client beside it.
var program = sync.OnceValues(func() (path string, err error) {
	if builtDir, err = os.MkdirTemp("", "mst-cni-"); err != nil {
		return "", err
	}
	path = filepath.Join(builtDir, netconf.FullPlugin)
	// of the version of this test
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "mustang/cmd/mustang-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, os.WriteFile(filepath.Join(builtDir, netconf.PluginType), install.Client(), 0o755)
})

// builtDir is the directory of both. TestMain removes it.
var builtDir string

// network is the configuration of a network; more has further keys.
func network(link, more string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":%q,"parent":"uplink",
		"ipam":{"type":"mustang","ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd00:9::/64"}]]}%s}`, link, more)
}

// pod is a pod with a network namespace.
type pod struct {
	*netns.Namespace
	id     string
	config []byte
	result types100.Result
}

func (f *fixture) pod(id string, config []byte) *pod {
	f.t.Helper()
	return &pod{Namespace: testkit.Namespace(f.t, id), id: id, config: config}
}

// call is a run of the plugin.
type call struct {
	verb   string
	pod    *pod
	socket string   // none: the plugin works alone
	before []string // a program that runs the plugin, with its arguments
	env    []string
	config []byte // in place of the pod's
}

// answer is the output of the plugin.
type answer struct {
	stdout, stderr string
	exit           int
}

func (f *fixture) command(c call) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	f.t.Helper()
	testkit.Must(program())(f.t)
	path := filepath.Join(builtDir, netconf.PluginType)
	line := append(slices.Clone(c.before), path)
	cmd := exec.Command(line[0], line[1:]...)
	p := f.plugin
	cmd.Env = append([]string{
		"MUSTANG_CNI_STATE_DIR=" + p.StateDir, "MUSTANG_CNI_RUN_DIR=" + p.RunDir, "MUSTANG_BPF_ROOT=" + p.BPFRoot,
		"MUSTANG_CNI_CGROUP=" + p.Cgroup, SocketVariable + "=" + c.socket, "PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=" + c.verb, "CNI_PATH=/nowhere",
	}, c.env...)
	config := c.config
	if c.pod != nil {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+c.pod.id, "CNI_IFNAME=eth0", "CNI_NETNS="+c.pod.Path())
		if config == nil {
			config = c.pod.config
		}
		if c.verb == "CHECK" || c.verb == "DEL" {
			config = with(config, `"prevResult":`+c.pod.text())
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, &stderr
	return cmd, &stdout, &stderr
}

func with(config []byte, keys string) []byte {
	return []byte(strings.TrimSuffix(strings.TrimSpace(string(config)), "}") + "," + keys + "}")
}

func (p *pod) text() string {
	data, err := json.Marshal(&p.result)
	if err != nil || len(p.result.IPs) == 0 {
		return "null"
	}
	return string(data)
}

func (f *fixture) run(c call) answer {
	f.t.Helper()
	cmd, stdout, stderr := f.command(c)
	f.must(f.host.Start(cmd))
	err := cmd.Wait()
	var exit *exec.ExitError
	testkit.Require(f.t, err == nil || errors.As(err, &exit), "%v", err)
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// works runs the plugin, which must succeed.
func (f *fixture) works(c call) answer {
	f.t.Helper()
	a := f.run(c)
	testkit.Require(f.t, a.exit == 0, "%s: exit %d: %s%s", c.verb, a.exit, a.stdout, a.stderr)
	if c.verb == "ADD" {
		f.read(c.pod, a)
	}
	return a
}

func (f *fixture) read(p *pod, a answer) {
	f.t.Helper()
	f.must(json.Unmarshal([]byte(a.stdout), &p.result))
}

func (f *fixture) add(id, socket string, config []byte) *pod {
	f.t.Helper()
	p := f.pod(id, config)
	f.works(call{verb: "ADD", pod: p, socket: socket})
	return p
}

// state lists the objects of the plugin on the host, in its directories and in the datapath.
func (f *fixture) state() (out []string) {
	f.t.Helper()
	devices := testkit.Must(rtnl.In(f.host).Devices())(f.t)
	for _, d := range devices {
		out = append(out, fmt.Sprintf("device %s %s", d.Kind, d.Name))
	}
	for _, pattern := range []string{f.plugin.RunDir + "/*/*/*", f.plugin.StateDir + "/*/*"} {
		out = append(out, testkit.Must(filepath.Glob(pattern))(f.t)...)
	}
	d := testkit.Must(datapath.OpenExisting(datapath.Options{Root: f.plugin.BPFRoot}))(f.t)
	defer d.Close()
	endpoints := testkit.Must(d.Endpoints().List(f.t.Context()))(f.t)
	for _, e := range endpoints {
		out = append(out, fmt.Sprint("endpoint ", e.IP))
	}
	services := testkit.Must(d.Services().List(f.t.Context()))(f.t)
	for _, s := range services {
		out = append(out, fmt.Sprint("service ", s))
	}
	scopes := testkit.Must(d.Sockets().List(f.t.Context()))(f.t)
	for _, s := range scopes {
		if s.Kind != datapath.HostScope {
			out = append(out, fmt.Sprint("sockets of ", s.Cookie))
		}
	}
	links := testkit.Must(filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links/*")))(f.t)
	return append(out, links...)
}

// same fails the test if the state differs from before.
func (f *fixture) same(before []string, when string) {
	f.t.Helper()
	after := f.state()
	testkit.Require(f.t, slices.Equal(before, after), "%s:\nbefore %q\nafter  %q", when, before, after)
}

// reach sends a message from one pod to an address of another, and receives the answer.
func (f *fixture) reach(from, to *pod) {
	f.t.Helper()
	for _, ip := range to.result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		server := testkit.Echo(f.t, to.Namespace, "tcp", netip.AddrPortFrom(addr.Unmap(), 0).String())
		_, err := testkit.RoundTrip(f.t, from.Namespace, "tcp", server.String(), []byte("message"))
		testkit.Check(f.t, err == nil, "%s to %s: %v", from.id, addr, err)
	}
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := kept.Main(m, testkit.CheckLeaks)
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
	os.Exit(code)
}
