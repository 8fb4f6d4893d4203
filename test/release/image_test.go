// SPDX-License-Identifier: Apache-2.0

package release

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

const stamped = "1.2.3"

// TestImage builds the image without a daemon, loads it into a Docker Engine of a lab, and runs a quick bench in a
// container. Each measured row must be right, and the result must have the version.
func TestImage(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "make")
	if err := (lab.Options{Topology: lab.TopologyDocker}).CheckInstalled(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir, err := os.MkdirTemp("", "mst-") // short, for the paths of sockets
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run(t, "../..", "make", "image", "BUILD="+dir, "VERSION="+stamped, "ARCH="+runtime.GOARCH, "IMAGE=mustang:tested")
	checkLayout(t, dir)
	docker := engine(t, dir, filepath.Join(dir, "programs", runtime.GOARCH, "mustang"))

	out := docker("load", "-i", filepath.Join(dir, "mustang-image.tar"))
	testkit.Check(t, strings.Contains(out, "mustang:tested"), "docker load: %s", out)
	if out := docker("run", "--rm", "--privileged", "mustang:tested", "version"); !strings.Contains(out, "mustang "+
		stamped+" ") {
		t.Errorf("version: %s", out)
	}
	results := filepath.Join(dir, "results")
	args := []string{"run", "--rm", "--privileged", "-v", results + ":/results"}
	if root, err := cgroup.Root(); err != nil {
		t.Fatal(err)
	} else if root != "/sys/fs/cgroup" { // Docker mounts it with cgroup v2 alone
		args = append(args, "-v", root+":"+root)
	}
	args = append(args, "mustang:tested", "bench", "--quick", "--rounds", "2", "--out", "/results")
	wanted := []string{"veth/pod-ip", "veth/cluster-ip/ebpf-socket", "veth+ebpf/cluster-ip", "macvlan+ebpf/cluster-ip",
		"veth/cluster-ip/iptables", "veth/cluster-ip/nftables"}
	for _, id := range wanted {
		args = append(args, "--only", id)
	}
	docker(args...)
	file, err := result.Read(filepath.Join(results, "latest", "results.json"))
	testkit.Succeed(t, err)
	got := file.Run.Versions["mustang"]
	testkit.Check(t, got == stamped, "the result is of version %q", got)
	for _, id := range wanted {
		testkit.Check(t, slices.ContainsFunc(file.Rows, func(row result.Row) bool { return row.ID == id }),
			"no row %s among %d", id, len(file.Rows))
	}
	for _, row := range file.Rows {
		testkit.Check(t, row.Status == result.StatusOK, "%s %s: %s: %s", row.ID, row.Workload, row.Status, row.Reason)
	}
}

// checkLayout reads the image's archive as tools for OCI images do.
func checkLayout(t *testing.T, dir string) {
	t.Helper()
	place := filepath.Join(dir, "layout")
	testkit.Succeed(t, os.Mkdir(place, 0o755))
	run(t, place, "tar", "-xf", filepath.Join(dir, "mustang-image.tar"))
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(place, name))
		testkit.Succeed(t, err)
		err = json.Unmarshal(data, into)
		testkit.Require(t, err == nil, "%s: %v", name, err)
	}
	var version struct {
		Version string `json:"imageLayoutVersion"`
	}
	read("oci-layout", &version)
	type descriptor struct {
		MediaType, Digest string
		Annotations       map[string]string
	}
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	testkit.Require(t, version.Version == "1.0.0" && len(index.Manifests) == 1, "layout %+v, index %+v", version, index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "docker.io/library/mustang:tested" {
		t.Errorf("containerd imports it as %q, which is not what the kubelet asks for", got)
	}
	blob := func(d descriptor) string { return "blobs/" + strings.ReplaceAll(d.Digest, ":", "/") }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(blob(index.Manifests[0]), &manifest)
	if len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar+gzip" {
		t.Fatalf("manifest %+v", manifest)
	}
	files := run(t, place, "tar", "-xzOf", blob(manifest.Layers[0]), "usr/share/doc/mustang/THIRD-PARTY-LICENCES")
	for _, module := range []string{"github.com/cilium/ebpf v", "Go go1."} {
		testkit.Check(t, strings.Contains(files, module), "the image lacks the licence of %s", module)
	}
	var config struct {
		Architecture string
		Config       struct{ Labels map[string]string }
	}
	read(blob(manifest.Config), &config)
	if config.Architecture != runtime.GOARCH || config.Config.Labels["org.opencontainers.image.version"] != stamped {
		t.Errorf("config %+v", config)
	}
}

// engine starts a lab with a Docker Engine, and returns the function that calls its client.
func engine(t *testing.T, dir, mustang string) func(args ...string) string {
	t.Helper()
	state := filepath.Join(dir, "s")
	run(t, dir, mustang, "lab", "up", "docker", "--state-dir", state)
	t.Cleanup(func() { run(t, dir, mustang, "lab", "down", "docker", "--state-dir", state) })
	sockets, err := filepath.Glob(filepath.Join(state, "labs", "*", "docker.sock"))
	testkit.Require(t, err == nil && len(sockets) == 1, "sockets %q, %v", sockets, err)
	programs := filepath.Join(filepath.Dir(sockets[0]), "bin")
	withoutMissing(t, filepath.Join(programs, "runc"))
	return func(args ...string) string {
		t.Helper()
		return run(t, dir, filepath.Join(programs, "docker"), append([]string{"-H", "unix://" + sockets[0]}, args...)...)
	}
}

// withoutMissing keeps runc from giving a container the one capability that root lacks on some machines that are
// containers themselves. Docker gives privileged containers all capabilities, and runc fails.
func withoutMissing(t *testing.T, runc string) {
	t.Helper()
	has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	testkit.Succeed(t, err)
	if has == 1 {
		return
	}
	program, err := os.Readlink(runc)
	testkit.Succeed(t, err)
	testkit.Succeed(t, os.Remove(runc))
	script := fmt.Sprintf(`#!/bin/bash
for ((i = 1; i < $#; i++)); do
  [ "${!i}" != --bundle ] || { next=$((i + 1)); /bin/sed -i 's/"CAP_SYS_RESOURCE",//g' "${!next}/config.json"; }
done
exec %s "$@"
`, program)
	testkit.Succeed(t, os.WriteFile(runc, []byte(script), 0o755))
}
