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
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// node is one of the cluster.
type node struct {
	c     *Cluster
	name  string
	addrs []string // node addresses, of the first family first
	init  *exec.Cmd
	life  io.Closer // the node ends when it is closed
	ns    *netns.Namespace
	// before is the node's state without Mustang.
	before []string
}

// initName is the command by which this program becomes a node's PID 1.
const initName = "be-init-of-node"

// startNodes makes the outside and the nodes.
func (c *Cluster) startNodes() (err error) {
	if c.outside, err = netns.New(); err != nil {
		return err
	}
	if err := ip(c.outside, append([]string{"link add br0 type bridge", "link set br0 up"}, c.each("addr add 10.197.0.1/24 dev br0", "addr add fd00:197::1/64 dev br0 nodad")...)...); err != nil {
		return err
	}
	count := map[string]int{"one": 1, "native": 2, "vxlan": 2, "three": 3}
	for i := range count[c.Nodes] {
		n := &node{c: c, name: fmt.Sprintf("node%d", i+1), addrs: c.each(fmt.Sprintf("10.197.0.1%d", i+1), fmt.Sprintf("fd00:197::1%d", i+1))}
		if err := n.start(); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// each returns what there is one of for each family of the cluster.
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
	if err := makeCgroups(n.c.name, n.name); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	n.init = exec.Command(exe, initName, dir)
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
	if err := ip(n.c.outside, fmt.Sprintf("link add %s type veth peer name eth0 netns %d", n.name, n.init.Process.Pid), "link set "+n.name+" master br0 up"); err != nil {
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

// path returns that of one of the node's files.
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
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(n.init.Process.Pid), "-m", "-u", "-n", "-p", "--"}, args...)...)
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

// daemon starts a program whose end is that of the cluster.
func (n *node) daemon(name string, args ...string) error {
	log, err := n.log(filepath.Base(name))
	if err != nil {
		return err
	}
	cmd := n.command(context.WithoutCancel(n.c.ctx), append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	err = errors.Join(cmd.Start(), log.Close())
	if err == nil {
		go func() {
			n.c.fail(fmt.Errorf("%s of %s ended: %v: see %s", filepath.Base(name), n.name, cmd.Wait(), log.Name()))
		}()
	}
	return err
}

// close ends the node with all of its processes.
func (n *node) close() error {
	errs := []error{n.life.Close(), n.init.Process.Kill()}
	_ = n.init.Wait() // it was killed
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

// Init is the life of a node's PID 1, if args, those of this process, ask for it. Else it returns false at once.
func Init(args []string) bool {
	if len(args) != 3 || args[1] != initName {
		return false
	}
	if err := initNode(args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}

// initNode mounts what daemons of a node take for theirs alone, and reaps until standard input ends.
func initNode(dir string) error {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGCHLD)
	if err := errors.Join(unix.Sethostname([]byte(filepath.Base(dir))), mountNode(dir)); err != nil {
		return err
	}
	fmt.Println("ready")
	closed := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		closed <- err
	}()
	for {
		select {
		case err := <-closed:
			return err
		case <-ends:
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}
}

// mountNode mounts the file systems and directories of a node. Nothing mounts the BPF file system, as in nodes that are containers.
func mountNode(dir string) error {
	control := filepath.Join(dir, "cgroup")
	steps := [][3]string{ // what, where, type or nothing to bind
		{"tmpfs", "/run", "tmpfs"},
		{"proc", "/proc", "proc"},
		// /sys of this network namespace, with the machine's control groups.
		{"/sys/fs/cgroup", control, ""},
		{"sysfs", "/sys", "sysfs"},
		{control, "/sys/fs/cgroup", ""},
		{filepath.Join(dir, "cni-bin"), "/opt/cni/bin", ""},
		{filepath.Join(dir, "cni-conf"), "/etc/cni/net.d", ""},
		{filepath.Join(dir, "cni-state"), "/var/lib/cni", ""},
		{filepath.Join(dir, "log"), "/var/log", ""},
	}
	// The kubelet sets these, for the whole machine: here it finds files that say that they are set.
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join(dir, "sysctl", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		steps = append(steps, [3]string{file, "/proc/sys/" + name, ""})
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, s := range steps {
		if err := mount(s[0], s[1], s[2]); err != nil {
			return fmt.Errorf("mount %s: %w", s[1], err)
		}
	}
	// Within the node: the kubelet's mounts are the runtime's.
	return errors.Join(os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/run/lock", 0o755), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
}

// mount mounts a file system, or binds a path if kind is empty.
func mount(what, where, kind string) error {
	if kind != "" {
		return unix.Mount(what, where, kind, 0, "")
	}
	if err := os.MkdirAll(filepath.Dir(where), 0o755); err != nil {
		return err
	}
	info, err := os.Stat(what)
	if err == nil && info.IsDir() && !strings.HasPrefix(where, "/sys/") {
		err = os.MkdirAll(where, 0o755)
	}
	if err != nil {
		return err
	}
	return unix.Mount(what, where, "", unix.MS_BIND|unix.MS_REC, "")
}
