// SPDX-License-Identifier: Apache-2.0

// Package cluster runs Kubernetes in namespaces of this machine: real daemons, up to three nodes, Mustang as the only
// network.
//
// A node is a set of namespaces (network, mount, PID, UTS) whose PID 1 is a shell (templates/init.sh). It ends when
// the process that started it ends, in whatever way; its daemons, pods and mounts end too. Files and control groups
// remain, which the next [Start] removes.
//
// The nodes, from 10.197.0.11 and fd00:197::11 on, are on a bridge in a namespace that is the outside of the cluster
// (.1, ::1). Pods are in 10.199.0.0/16 (fd00:199::/48), services in 10.198.0.0/16 (fd00:198::/108).
package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Setup is the variable part of a cluster.
type Setup struct {
	// Link is the mode of pods' links.
	Link string
	// Family is ipv4, ipv6 or dual.
	Family string
	// Nodes is one or three, for so many nodes; native or vxlan, for two nodes joined that way. Each node is in its own
	// zone.
	Nodes string
	// Peer replaces Mustang: flannel, bridge or kube-router on two nodes, with kube-proxy in the mode Proxy.
	Peer, Proxy string
}

// String returns the set-up's name, such as veth/dual/native or flannel/vxlan/nftables.
func (s Setup) String() string {
	if s.Peer != "" {
		return s.Peer + "/" + s.Nodes + "/" + s.Proxy
	}
	return s.Link + "/" + s.Family + "/" + s.Nodes
}

// Validate returns an error that names the unknown part of the set-up. The agent validates the link mode.
func (s Setup) Validate() error {
	if !slices.Contains([]string{"ipv4", "ipv6", "dual"}, s.Family) {
		return fmt.Errorf("family %q: want ipv4, ipv6 or dual", s.Family)
	}
	if !slices.Contains([]string{"one", "native", "vxlan", "three"}, s.Nodes) {
		return fmt.Errorf("nodes %q: want one, native, vxlan or three", s.Nodes)
	}
	return nil
}

// Options configure a cluster.
type Options struct {
	Setup
	Programs Programs
	// Image is the archive of Mustang's image, Manifest the file that installs it, and Chart the directory that Helm, a
	// program, installs it from. Program is the image's.
	Image, Manifest, Program string
	Chart, Helm              string
	// ByKubeadm has kubeadm make the cluster, by the commands of Page, which is the page for users: docs/kubernetes.md.
	ByKubeadm bool
	Page      string
	// Peers is the directory with the programs of other networks.
	Peers string
	// Dir takes the cluster's files while it runs, and its logs, which stay.
	Dir string
}

// Cluster is one that runs.
type Cluster struct {
	Options
	name    string
	nodes   []*node
	outside *netns.Namespace
	lock    *os.File
	ctx     context.Context
	fail    context.CancelCauseFunc
}

// step is one of several that follow each other.
type step struct {
	name string
	do   func() error
}

//go:embed templates
var templates embed.FS

// nameOf returns the name of the control group of a directory's cluster. Clusters of other directories share nothing
// with it.
func nameOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "mustang-k8s-" + hex.EncodeToString(sum[:4])
}

// Start starts a cluster and returns it when its nodes are ready. A directory holds one at a time: Start removes the
// remains of a killed one. The cluster lives as long as ctx.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Cluster{Options: o, name: nameOf(o.Dir)}
	c.ctx, c.fail = context.WithCancelCause(ctx)
	if err := os.MkdirAll(c.path("log"), 0o755); err != nil {
		return nil, err
	}
	if c.lock, err = os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another cluster runs in %s: %w", c.Dir, err), c.lock.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := errors.Join(cgroups("remove", c.name), os.RemoveAll(c.path("run"))); err != nil {
		return nil, fmt.Errorf("remove the last cluster: %w", err)
	}
	if err := os.MkdirAll(c.path("run"), 0o700); err != nil {
		return nil, err
	}
	steps := []step{
		{"nodes", c.startNodes},
		{"control plane", c.startControl},
		{"kubelets", c.startKubelets},
		{"network", c.installNetwork},
		{"DNS", c.startDNS},
		{"nodes that are ready", c.awaitNodes},
	}
	if c.ByKubeadm {
		steps = c.kubeadmSteps()
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return c, nil
}

// Wait returns when the cluster's context is done, without an error, or why the cluster ended.
func (c *Cluster) Wait() error {
	<-c.ctx.Done()
	if err := context.Cause(c.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close ends the cluster and removes all but its logs.
func (c *Cluster) Close() error {
	c.fail(errors.New("the cluster ends"))
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.close())
	}
	if c.outside != nil {
		errs = append(errs, c.outside.Close())
	}
	errs = append(errs, cgroups("remove", c.name), os.RemoveAll(c.path("run")))
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
	}
	return errors.Join(errs...)
}

// path returns the path of a file of the cluster.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

// Kubeconfig returns the path of the administrator's.
func (c *Cluster) Kubeconfig() string { return c.path("run", "admin.kubeconfig") }

// Command returns a command in the namespaces of node 1, with kubectl on its path and KUBECONFIG set. It is ended with
// ctx.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := c.nodes[0].command(ctx, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "PATH="+filepath.Dir(c.Programs.Path("kubectl"))+":"+
		os.Getenv("PATH"))
	return cmd
}

// kubectl runs kubectl and returns its output. input is its standard input.
func (c *Cluster) kubectl(input io.Reader, args ...string) (string, error) {
	cmd := c.Command(c.ctx, append([]string{"kubectl"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = input, &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), err
}

// apply has Kubernetes take objects.
func (c *Cluster) apply(objects string) error {
	_, err := c.kubectl(strings.NewReader(objects), "apply", "-f", "-")
	return err
}

// render returns a template filled in with a map or a struct.
func render(name string, data any) (string, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, data)
	return out.String(), err
}

// await calls done until it returns nil. It returns its last error after the time, or why the cluster ended.
func (c *Cluster) await(limit time.Duration, done func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := done()
		if err == nil {
			return nil
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not after %v: %w", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
