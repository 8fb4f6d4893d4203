// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/cni/netconf"
	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/policies"
	"mustang/internal/lab"
	"mustang/internal/policy/manifest"
	"mustang/internal/result"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(testsThenRemove{m}, map[string]func(){"mustang": func() {
		if os.Getenv(oneThreadVariable) != "" {
			runtime.LockOSThread()
		}
		main()
	}})
}

// testsThenRemove runs the tests, and removes the builds of [staticProgram].
type testsThenRemove struct{ *testing.M }

// Run returns the exit code. The tests run thousands of commands in this process, most of whose heap is garbage. With
// Go's usual limit, its collection takes a quarter of the CPU time.
func (m testsThenRemove) Run() int {
	debug.SetGCPercent(400)
	code := m.M.Run()
	if err := errors.Join(kept.Remove(), os.RemoveAll(programs)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

var programs string // the directory that buildPrograms has made

// buildPrograms builds mustang and its plugin as containers and guests need them, without C library. Without symbols,
// as in releases, they link faster, and guests in emulation read a third less.
var buildPrograms = sync.OnceValue(func() (err error) {
	if programs, err = os.MkdirTemp("", "mustang-test-"); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", programs, "mustang/cmd/mustang",
		"mustang/cmd/mustang-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

// staticProgram returns the path of mustang or mustang-cni as a static program. The first test builds them.
func staticProgram(t *testing.T, name string) string {
	t.Helper()
	testkit.Succeed(t, buildPrograms())
	return filepath.Join(programs, name)
}

// TestScripts runs testdata/script, each in its own state directory and on its own bpffs, with the real program.
func TestScripts(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "iperf3")
	runScripts(t, "testdata/script")
}

func runScript(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	testkit.Succeed(t, os.WriteFile(dir+"/page.txtar", []byte(script), 0o600))
	runScripts(t, dir)
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	bpffs := testkit.BPFFS(t)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"retry": retry, "agent": agentApplies, "owned": addOwned,
			"plugin": func(ts *testscript.TestScript, _ bool, _ []string) { // sets the path of the built plugin
				ts.Setenv("PLUGIN", staticProgram(t, netconf.PluginType))
			},
			"network": func(ts *testscript.TestScript, _ bool, _ []string) { // sets the names of its namespaces
				n := newKillNetwork(t)
				ts.Setenv(cli.EnvBPFRoot, kept.Root(t))
				for _, place := range []string{"HOST", "PODA", "PODB", "PODC", "CGROUP", "BACKEND"} {
					ts.Setenv(place, n.args("=" + place)[0][1:])
				}
			},
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv(cli.EnvBPFRoot, filepath.Join(bpffs, filepath.Base(env.WorkDir)))
			env.Setenv(node.EnvSaved, filepath.Join(env.WorkDir, "saved", "services.json"))
			return ownLabs(t, env)
		},
	})
}

// retry is a script command that runs a program until it succeeds, such as a client of a daemon that starts to listen.
func retry(ts *testscript.TestScript, _ bool, args []string) {
	var err error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = ts.Exec(args[0], args[1:]...); err == nil {
			return
		}
	}
	ts.Fatalf("%s: %v", strings.Join(args, " "), err)
}

func onDatapath(ts *testscript.TestScript, do func(*datapath.Datapath) error) {
	d, err := datapath.Open(context.Background(), datapath.Options{Root: ts.Getenv(cli.EnvBPFRoot)})
	ts.Check(err)
	ts.Check(errors.Join(do(d), d.Close()))
}

// agentApplies is a script command that makes the policies of a file the policies of the agent.
func agentApplies(ts *testscript.TestScript, _ bool, args []string) {
	set, err := manifest.Read(strings.NewReader(ts.ReadFile(args[0])))
	ts.Check(err)
	onDatapath(ts, func(d *datapath.Datapath) error {
		_, err := d.Policies().Apply(context.Background(), service.Agent, policies.Set{Snapshot: set.Snapshot})
		return err
	})
}

// addOwned is a script command that adds a service of an owner, agent or cni, at an address and port.
func addOwned(ts *testscript.TestScript, _ bool, args []string) {
	owner := map[string]service.Owner{"agent": service.Agent, "cni": service.CNI}[args[0]]
	onDatapath(ts, func(d *datapath.Datapath) error {
		_, _, err := d.Services().Put(context.Background(), owner, service.Service{
			Frontend: netip.MustParseAddrPort(args[1]), Protocol: service.TCP,
		})
		return err
	})
}

// ownLabs gives a script a state directory, and takes down at its end what labs a failed script leaves.
func ownLabs(t *testing.T, env *testscript.Env) error {
	store := lab.Store{Dir: filepath.Join(env.WorkDir, "state")}
	env.Setenv(envStateDir, store.Dir)
	env.Defer(func() {
		infos, err := store.List()
		testkit.Check(t, err == nil, "%v", err)
		for _, info := range infos {
			err := store.Down(info.Name)
			testkit.Check(t, err == nil, "%v", err)
		}
	})
	return nil
}

func command(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := cli.Environment{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(key string) string { return env[key] },
	}
	code = run(context.Background(), e, args)
	return code, out.String(), errs.String()
}

func readResults(path string) (result.File, error) {
	path, err := result.FindFile(path)
	if err != nil {
		return result.File{}, err
	}
	return result.Read(path)
}
