// SPDX-License-Identifier: Apache-2.0

package release

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// inPodman loads the image $2 and runs podman with the other arguments. All files of podman are in a mount namespace of
// their own and end with it. Its control groups are in $1. It raises no limits, as it does by default.
const inPodman = `for dir in /run /dev/shm /var/lib; do mount -t tmpfs tmpfs $dir; done
parent=$1 image=$2; shift 2
podman="podman --cgroup-manager cgroupfs --runtime runc --events-backend none --storage-driver vfs"
$podman load -q -i "$image"
exec $podman run --cgroup-parent "$parent" --network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"`

// TestImage builds the image without a daemon. In a lab Docker runs bench with its usual rows in a container of the
// image, and podman with rows of all kinds. Each answers the question, and has the version.
func TestImage(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "make")
	testkit.RequireTool(t, "podman")
	if err := (lab.Options{Topology: lab.TopologyDocker}).CheckInstalled(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir, err := os.MkdirTemp("", "mst-") // short, for the paths of sockets
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run(t, "../..", "make", "image", "BUILD="+dir, "VERSION="+stamped, "ARCH="+runtime.GOARCH, "IMAGE=mustang:tested")
	checkLayout(t, dir)
	mustang, image := filepath.Join(dir, "programs", runtime.GOARCH, "mustang"), filepath.Join(dir, "mustang-image.tar")
	docker := engine(t, dir, mustang)
	docker("load", "-i", image)
	args := []string{"--rm", "--privileged", "-v", dir + ":/results"}
	if root := testkit.Must(cgroup.Root())(t); root != "/sys/fs/cgroup" { // Docker mounts it with cgroup v2 alone
		args = append(args, "-v", root+":"+root)
	}
	args = append(args, "mustang:tested", "bench", "--out", "/results/results", "--rounds")
	checkAnswer(t, dir, docker(slices.Concat([]string{"run"}, args, []string{"6"})...), "iptables", "nftables", "ebpf-tc")

	args = slices.Concat([]string{"lab", "exec", "--state-dir", filepath.Join(dir, "s"), "host-a", "--", "unshare",
		"--mount", "sh", "-ec", inPodman, "sh", "/mst-docker.docker", image}, args, []string{"2"})
	for _, id := range []string{"veth/pod-ip", "veth/cluster-ip/ebpf-socket", "veth+ebpf/cluster-ip", "macvlan/pod-ip",
		"macvlan/cluster-ip/iptables", "veth/cluster-ip/nftables"} {
		args = append(args, "--only", id)
	}
	checkAnswer(t, dir, run(t, dir, mustang, args...), "iptables", "nftables", "ebpf-tc", "ebpf-socket")
}

// checkAnswer expects that bench named the best way of each workload, and measured Services of some kinds. It has
// skipped only what the kernel lacks.
func checkAnswer(t *testing.T, dir, out string, kinds ...string) {
	t.Helper()
	best := regexp.MustCompile(` (is|are|has|have) the (fastest|highest figure) for (streams|requests|connections): `)
	if n := len(best.FindAllString(strings.Join(strings.Fields(out), " "), -1)); n != 3 {
		t.Errorf("the best ways of %d workloads:\n%s", n, out)
	}
	file := testkit.Must(result.Read(filepath.Join(dir, "results", "latest", "results.json")))(t)
	testkit.Check(t, file.Run.Versions["mustang"] == stamped, "the result has versions %v", file.Run.Versions)
	for _, row := range file.Rows {
		if row.Status == result.StatusOK {
			kinds = slices.DeleteFunc(kinds, func(via string) bool { return via == row.Via })
		} else if row.Status != result.StatusSkipped || !strings.Contains(row.Reason, "lacks") {
			t.Errorf("%s %s: %s: %s", row.ID, row.Workload, row.Status, row.Reason)
		}
	}
	testkit.Check(t, len(kinds) == 0, "no rows with %v:\n%s", kinds, out)
}

// checkLayout reads the image's archive as tools for OCI images do.
func checkLayout(t *testing.T, dir string) {
	t.Helper()
	place := filepath.Join(dir, "layout")
	testkit.Succeed(t, os.Mkdir(place, 0o755))
	run(t, place, "tar", "-xf", filepath.Join(dir, "mustang-image.tar"))
	read := func(name string, into any) {
		t.Helper()
		err := json.Unmarshal(testkit.Must(os.ReadFile(filepath.Join(place, name)))(t), into)
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
	has := testkit.Must(unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0))(t)
	if has == 1 {
		return
	}
	program := testkit.Must(os.Readlink(runc))(t)
	testkit.Succeed(t, os.Remove(runc))
	script := fmt.Sprintf(`#!/bin/bash
for ((i = 1; i < $#; i++)); do
  [ "${!i}" != --bundle ] || { next=$((i + 1)); /bin/sed -i 's/"CAP_SYS_RESOURCE",//g' "${!next}/config.json"; }
done
exec %s "$@"
`, program)
	testkit.Succeed(t, os.WriteFile(runc, []byte(script), 0o755))
}
