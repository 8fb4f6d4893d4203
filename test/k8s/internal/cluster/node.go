// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// node is one of the cluster.
type node struct {
	c       *Cluster
	name    string
	addrs   []string // node addresses, of the first family first
	init    *exec.Cmd
	life    io.Closer // the node ends when it is closed
	ns      *netns.Namespace
	daemons []*daemon
	// before is the node's state without Mustang, but with forwarding.
	before []string
}

// daemon is a program that runs in a node.
type daemon struct {
	*exec.Cmd
	name  string
	meant atomic.Bool   // its end does not end the cluster
	ended chan struct{} // closed
}

// startNodes makes the outside and the nodes.
func (c *Cluster) startNodes() (err error) {
	if c.outside, err = netns.New(); err != nil {
		return err
	}
	if err := ip(c.outside, append([]string{"link add br0 type bridge", "link set br0 up"},
		c.each("addr add 10.197.0.1/24 dev br0", "addr add fd00:197::1/64 dev br0 nodad")...)...); err != nil {
		return err
	}
	count := map[string]int{"one": 1, "native": 2, "vxlan": 2, "three": 3}
	for i := range count[c.Nodes] {
		n := &node{c: c, name: fmt.Sprintf("node%d", i+1), addrs: c.each(fmt.Sprintf("10.197.0.1%d", i+1),
			fmt.Sprintf("fd00:197::1%d", i+1))}
		if err := n.start(); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// each returns one item for each family of the cluster.
func (c *Cluster) each(v4, v6 string) []string {
	switch c.Family {
	case "ipv4":
		return []string{v4}
	case "ipv6":
		return []string{v6}
	}
	return []string{v4, v6}
}

// list is each as a list with commas.
func (c *Cluster) list(v4, v6 string) string { return strings.Join(c.each(v4, v6), ",") }

// start starts the node's PID 1 and connects it with the outside.
func (n *node) start() (err error) {
	dir := n.path()
	for _, sub := range []string{"kubelet", "containerd", "cni-bin", "cni-conf", "cni-state", "log", "sysctl", "cgroup"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	if err := cgroups("make", n.c.name, n.name); err != nil {
		return err
	}
	if n.init, err = script("init.sh", dir); err != nil {
		return err
	}
	n.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWNET, Setsid: true,
	}
	if n.life, err = n.init.StdinPipe(); err != nil {
		return err
	}
	ready, err := n.init.StdoutPipe()
	if err != nil {
		return err
	}
	if n.init.Stderr, err = n.log("init"); err != nil {
		return err
	}
	if err := n.init.Start(); err != nil {
		return err
	}
	n.c.nodes = append(n.c.nodes, n)
	if line, err := bufio.NewReader(ready).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("PID 1 says %q: %w", line, err)
	}
	if n.ns, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", n.init.Process.Pid)); err != nil {
		return err
	}
	if err := ip(n.c.outside, fmt.Sprintf("link add %s type veth peer name eth0 netns %d", n.name, n.init.Process.Pid),
		"link set "+n.name+" master br0 up"); err != nil {
		return err
	}
	lines := []string{"link set lo up", "link set eth0 up"}
	for _, addr := range n.addrs {
		if strings.Contains(addr, ":") {
			lines = append(lines, "addr add "+addr+"/64 dev eth0 nodad", "route add default via fd00:197::1")
		} else {
			lines = append(lines, "addr add "+addr+"/24 dev eth0", "route add default via 10.197.0.1")
		}
	}
	return ip(n.ns, lines...)
}

// path returns the path of one of the node's files.
func (n *node) path(elements ...string) string {
	return n.c.path(append([]string{"run", n.name}, elements...)...)
}

// log opens the log of one of the node's daemons.
func (n *node) log(name string) (*os.File, error) {
	return os.Create(n.c.path("log", n.name+"-"+name+".log"))
}

// command returns a command in all namespaces of the node. It ends with the node, or with ctx.
func (n *node) command(ctx context.Context, args ...string) *exec.Cmd {
	// nsenter forks to enter the PID namespace: to kill it would leave the command alone.
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(n.init.Process.Pid), "-m", "-u", "-n",
		"-p", "--"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// run runs a command in the node.
func (n *node) run(args ...string) error {
	if out, err := n.command(n.c.ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// daemon starts a program whose end ends the cluster.
func (n *node) daemon(name string, args ...string) error {
	log, err := n.log(filepath.Base(name))
	if err != nil {
		return err
	}
	cmd := n.command(context.WithoutCancel(n.c.ctx), append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	err = errors.Join(cmd.Start(), log.Close())
	if err == nil {
		d := &daemon{Cmd: cmd, name: filepath.Base(name), ended: make(chan struct{})}
		n.daemons = append(n.daemons, d)
		go func() {
			err := cmd.Wait()
			if !d.meant.Load() {
				n.c.fail(fmt.Errorf("%s of %s ended: %v: see %s", d.name, n.name, err, log.Name()))
			}
			close(d.ended)
		}()
	}
	return err
}

// end ends a daemon with a name.
func (n *node) end(name string) error {
	i := slices.IndexFunc(n.daemons, func(d *daemon) bool { return d.name == name })
	if i < 0 {
		return fmt.Errorf("%s runs no %s", n.name, name)
	}
	d := n.daemons[i]
	d.meant.Store(true)
	if err := syscall.Kill(-d.Process.Pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end %s of %s: %w", name, n.name, err)
	}
	<-d.ended
	n.daemons = slices.Delete(n.daemons, i, i+1)
	return n.c.await(30*time.Second, func() error { // what started it has ended, perhaps before it
		if n.run("pgrep", "-x", name) == nil {
			return fmt.Errorf("%s of %s runs on", name, n.name)
		}
		return nil
	})
}

// close ends the node with all of its processes.
func (n *node) close() error {
	errs := []error{n.life.Close(), n.init.Process.Kill()}
	ended := make(chan struct{})
	go func() {
		_ = n.init.Wait() // it was killed
		close(ended)
	}()
	for done := false; !done; { // it ends once all its processes do, also those whose starter was just paused
		n.continueDaemons()
		select {
		case <-ended:
			done = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	if n.ns != nil {
		errs = append(errs, n.ns.Close())
	}
	return errors.Join(errs...)
}

// ip runs commands of iproute2 in a namespace.
func ip(ns *netns.Namespace, lines ...string) error {
	return ns.Do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, out)
		}
		return nil
	})
}

// script returns a command that runs one of the scripts.
func script(name string, args ...string) (*exec.Cmd, error) {
	text, err := templates.ReadFile("templates/" + name)
	return exec.Command("bash", append([]string{"-euc", string(text), name}, args...)...), err
}

// cgroups makes or removes the control groups of nodes.
func cgroups(args ...string) error {
	cmd, err := script("cgroups.sh", args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("control groups: %w: %s", err, out)
	}
	return nil
}
