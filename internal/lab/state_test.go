// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestFindOfTwo checks the hint on how to name one of several labs.
func TestFindOfTwo(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	testkit.Succeed(t, os.Mkdir(s.labs(), 0o700))
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(s.labs(), name+stateSuffix), []byte(`{"name":"`+name+`","standing":true}`),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Find(""); err == nil ||
		!strings.Contains(err.Error(), "labs one, two: name one, as in lab exec --lab one, lab down one") {
		t.Errorf("error %v", err)
	}
}

// FuzzState reads state files of any content: none is the end of a command.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"name":"x","topology":"pod-links","link":"veth","netfilter_call":false,"datapath":"ebpf",` +
		`"via":"ebpf-tc","standing":true,"created":"2025-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"name":"x","topology":"pod-to-network","link":"macvlan","parent":{"device":"eth1","host":"10.0.0.50/` +
		`24","pod":"10.0.0.51/24"}}`))
	f.Add([]byte(`{"topology":"two-hosts","link":"host","wire_rate":18446744073709551615,"wire_delay":-1}`))
	f.Add([]byte(`{"disk":"../../x","parent":{"host":"10.0.0.50"}}`))
	f.Add([]byte("null"))
	f.Add([]byte(""))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var info Info
		if err := json.Unmarshal(data, &info); err != nil {
			return
		}
		_, _ = info.withDefaults()
		for _, place := range (Store{}).Places(info) {
			_ = Addresses(info.Options, place)
		}
	})
}

// TestDockerExec checks the docker command of a command in a container. Its command line lacks values of the
// environment, and its environment lacks settings of the user's engine.
func TestDockerExec(t *testing.T) {
	exe := testkit.Must(os.Executable())(t)
	e := &engine{dir: "/lab", client: "/usr/bin/docker"}
	cmd := exec.Command(exe, "agent", "--x")
	cmd.Env = []string{"A=secret", "DOCKER_HOST=tcp://127.0.0.1:1", "DOCKER_CONFIG=/root"}
	testkit.Succeed(t, e.wrap("container-a", cmd))
	want := []string{
		"/usr/bin/docker", "--host=unix:///lab/docker.sock", "exec", "--interactive", "--env", "A", "container-a", "/mustang",
		"agent", "--x",
	}
	if cmd.Path != want[0] || !slices.Equal(cmd.Args, want) ||
		!slices.Equal(cmd.Env, []string{"A=secret", "DOCKER_CONFIG=/lab/client"}) {
		t.Errorf("%s %q with %q", cmd.Path, cmd.Args, cmd.Env)
	}
	if err := e.wrap("container-a", exec.Command("/bin/true")); err == nil || !strings.Contains(err.Error(), "/bin/true") {
		t.Errorf("error %v for a program that the container lacks", err)
	}
}
