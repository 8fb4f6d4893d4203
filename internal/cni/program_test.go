// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"mustang/internal/cni/netconf"
	"mustang/internal/testkit"
)

// builtDir is the directory of the built plugin. TestMain removes it.
var builtDir string

// program builds the plugin, once.
var program = sync.OnceValues(func() (path string, err error) {
	if builtDir, err = os.MkdirTemp("", "mst-cni-"); err != nil {
		return "", err
	}
	path = filepath.Join(builtDir, netconf.PluginType)
	cmd := exec.Command("go", "build", "-o", path, "mustang/cmd/mustang-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

const debianPlugins = "/usr/lib/cni" // the directory of the reference plugins in Debian

// requirePlugin skips the test if a reference plugin is missing.
func (f *fixture) requirePlugin(name string) {
	f.t.Helper()
	if _, err := os.Stat(filepath.Join(debianPlugins, name)); err != nil {
		testkit.Skip(f.t, "needs the CNI plugin "+name+" (package containernetworking-plugins)")
	}
}

// call is a call of a plugin by a runtime.
type call struct {
	program string // a path; empty for ours
	verb    string
	env     []string // beside CNI_COMMAND
	config  []byte
	input   io.Reader // instead of config, unless nil
}

// answer is the output of a plugin.
type answer struct {
	stdout, stderr string
	exit           int
}

// running is a call that has started.
type running struct {
	f              *fixture
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func (f *fixture) start(c call) *running {
	f.t.Helper()
	if c.program == "" {
		c.program = testkit.Must(program())(f.t)
	}
	r := &running{f: f, cmd: exec.Command(c.program)}
	r.cmd.Env = append([]string{
		"MUSTANG_CNI_STATE_DIR=" + f.plugin.StateDir, "MUSTANG_CNI_RUN_DIR=" + f.plugin.RunDir, "MUSTANG_BPF_ROOT=" +
			f.plugin.BPFRoot,
		"MUSTANG_CNI_CGROUP=" + f.plugin.Cgroup, "PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + c.verb,
	}, c.env...)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = bytes.NewReader(c.config), &r.stdout, &r.stderr
	if c.input != nil {
		r.cmd.Stdin = c.input
	}
	f.must(f.host.Start(r.cmd))
	return r
}

func (r *running) wait() answer {
	r.f.t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	testkit.Require(r.f.t, err == nil || errors.As(err, &exit), "%v", err)
	return answer{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()}
}

func (f *fixture) run(c call) answer {
	f.t.Helper()
	return f.start(c).wait()
}

func (f *fixture) runFor(p *pod, verb string, dirs ...string) answer {
	f.t.Helper()
	config := p.request.Config
	if verb == "CHECK" {
		config = f.previous(config, p)
	}
	return f.run(call{verb: verb, env: p.environment(dirs...), config: config})
}

// previous adds the pod's result to a configuration, in its version.
func (f *fixture) previous(config []byte, p *pod) []byte {
	f.t.Helper()
	result := testkit.Must(p.result.GetAsVersion(netconf.ParseHead(config).CNIVersion))(f.t)
	return withPrevious(config, string(testkit.Must(json.Marshal(result))(f.t)))
}

// environment is the environment of a call without the verb.
func (p *pod) environment(dirs ...string) []string {
	return []string{
		"CNI_CONTAINERID=" + p.request.ContainerID, "CNI_IFNAME=" + p.request.IfName, "CNI_NETNS=" + p.request.Netns,
		"CNI_PATH=" + strings.Join(append(dirs, "/nowhere"), ":"),
	}
}

// with adds keys to a configuration, and withPrevious a previous result.
func with(config []byte, keys string) []byte {
	return []byte(strings.TrimSuffix(strings.TrimSpace(string(config)), "}") + "," + keys + "}")
}

func withPrevious(config []byte, result string) []byte { return with(config, `"prevResult":`+result) }

// worked fails the test unless the plugin succeeded.
func (f *fixture) worked(a answer) answer {
	f.t.Helper()
	testkit.Require(f.t, a.exit == 0, "exit code %d: %s%s", a.exit, a.stdout, a.stderr)
	return a
}

func (f *fixture) told(p *pod, a answer) {
	f.t.Helper()
	p.result = testkit.Must(types100.NewResultFromResult(f.result(a)))(f.t)
}

func (f *fixture) result(a answer) types.Result {
	f.t.Helper()
	return testkit.Must(create.CreateFromBytes([]byte(f.worked(a).stdout)))(f.t)
}

// failed fails the test unless the plugin failed with a code, and one line that has all words.
func (f *fixture) failed(a answer, code uint, words ...string) {
	f.t.Helper()
	var said struct {
		CNIVersion string `json:"cniVersion"`
		types.Error
	}
	decoder := json.NewDecoder(strings.NewReader(a.stdout))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(&said); {
	case a.exit == 0:
		f.t.Errorf("it worked, want code %d: %s", code, a.stdout)
		return
	case err != nil:
		f.t.Errorf("%v: %q is no error (stderr: %q)", err, a.stdout, a.stderr)
		return
	case decoder.More():
		f.t.Errorf("%q is more than an error", a.stdout)
	}
	testkit.Check(f.t, said.Code == code && said.CNIVersion != "" && said.Msg != "" && !strings.Contains(said.Msg, "\n"),
		"want code %d, a version, and one line: %s", code, a.stdout)
	for _, word := range words {
		testkit.Check(f.t, strings.Contains(said.Msg+said.Details, word), "want %q in %s", word, a.stdout)
	}
}
