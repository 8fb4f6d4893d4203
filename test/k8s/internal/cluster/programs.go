// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Programs is the result of a build.
type Programs struct {
	// Version is the release of Kubernetes.
	Version string
	dir     string
	source  string // of Kubernetes' module
}

// Path returns the path of a program: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl,
// kube-proxy, coredns, ginkgo, e2e.test, or kubeadm, which [Programs.Kubeadm] builds.
func (s Programs) Path(name string) string { return filepath.Join(s.dir, name) }

// Images returns the path of the archive with the images of pods.
func (s Programs) Images() string { return s.Path("images.tar") }

// program is a program to build: a package, in the directory of its own module.
type program struct{ name, module, pkg string }

// list begins with the program that takes longest to build. The API server's modules include most of the others'.
var list = []program{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"},
	{"kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"},
	{"kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"}, // for test/scale
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3"},
	{"ginkgo", "kubernetes", "github.com/onsi/ginkgo/v2/ginkgo"},
	{"agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost"},
	{invalid, "kubernetes", "k8s.io/kubernetes/test/images/regression-issue-74839"},
	{"e2e.test", "kubernetes", "."},
	{"coredns", "coredns", "."},
}

// Build builds the parts of a cluster and its tests: programs from Go modules, and an image archive from these and
// Debian packages. Existing parts stay, below the directory cache in a directory for this source. source is the
// directory with the modules of programs. It prints its steps, and needs the go command, apt and dpkg.
func Build(ctx context.Context, source, cache string, tell io.Writer) (Programs, error) {
	digest, err := digestOf(source)
	if err != nil {
		return Programs{}, fmt.Errorf("the source of programs: %w", err)
	}
	s := Programs{dir: filepath.Join(cache, digest)}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return Programs{}, err
	}
	if err := s.find(ctx, filepath.Join(source, "kubernetes")); err != nil {
		return Programs{}, err
	}
	for _, p := range list {
		p.module = filepath.Join(source, p.module)
		if err := s.build(p.name, tell, func(path string) error { return s.compile(ctx, p, path) }); err != nil {
			return Programs{}, err
		}
	}
	return s, s.build("images.tar", tell, func(path string) error { return s.images(ctx, path) })
}

// NetpolAPI builds the conformance tests of network-policy-api into dir, from their module below source. It returns the
// test program and the file that defines ClusterNetworkPolicy.
func (s Programs) NetpolAPI(ctx context.Context, source, dir string) (path, definition string, err error) {
	p := program{"netpol-api.test", filepath.Join(source, "netpolapi"), "."}
	path = filepath.Join(dir, p.name)
	if err := s.compile(ctx, p, path); err != nil {
		return "", "", err
	}
	module, err := output(ctx, p.module, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api")
	const file = "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"
	return path, filepath.Join(strings.TrimSpace(string(module)), file), err
}

// recipe counts changes of the build that neither the modules nor the lists show.
const recipe = 2

// digestOf returns a name for the source of the programs: the modules, and the packages of the image.
func digestOf(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, recipe, packages, list)
	for _, module := range []string{"kubernetes", "coredns"} {
		files, err := filepath.Glob(filepath.Join(source, module, "*"))
		if err != nil || len(files) == 0 {
			return "", errors.Join(err, fmt.Errorf("%s has no module %s", source, module))
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			sum.Write(data)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// build makes a file with write, unless it exists. It writes to a temporary name first, so that an existing file is
// whole.
func (s Programs) build(name string, tell io.Writer, write func(path string) error) error {
	path := s.Path(name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	start, aside := time.Now(), s.Path("."+name)
	err := write(aside)
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	fmt.Fprintf(tell, "built %s in %.0f s\n", name, time.Since(start).Seconds())
	return nil
}

// compile builds a program without cgo, so that it needs no libraries. Programs of Kubernetes get their version.
func (s Programs) compile(ctx context.Context, p program, path string) error {
	flags := "-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, value := range []string{"gitVersion=" + s.Version, "gitMajor=1", "gitMinor=" +
			strings.Split(s.Version, ".")[1]} {
			flags += " -X " + pkg + "." + value
		}
	}
	args := []string{"build"}
	if strings.HasSuffix(p.name, ".test") {
		args = []string{"test", "-c"}
	}
	_, err := output(ctx, p.module, "go", append(args, "-ldflags", flags, "-o", path, p.pkg)...)
	return err
}

// find sets the release of Kubernetes that the module in dir requires, and where its source is.
func (s *Programs) find(ctx context.Context, dir string) error {
	if _, err := output(ctx, dir, "go", "mod", "download", "k8s.io/kubernetes"); err != nil {
		return err
	}
	out, err := output(ctx, dir, "go", "list", "-m", "-json", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	var module struct{ Version, Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	s.Version, s.source = module.Version, module.Dir
	return nil
}

// output runs a command in dir with the Go settings that the modules need, and returns its output.
func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return out, nil
}
