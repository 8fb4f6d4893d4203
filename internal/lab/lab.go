// SPDX-License-Identifier: Apache-2.0

// Package lab builds networks of network namespaces on one machine, see [Topologies]. Pods can be virtual machines.
//
// A lab does not touch the root network namespace. Firewall rules and sysctls are set in its own hosts, and eBPF maps
// and programs are pinned on its own bpffs. Deleting the namespaces and unmounting the bpffs removes everything.
//
// A lab belongs to the process that created it, which holds a lock on the lab's state file. If the owner was killed,
// [Store.Reap] removes the lab. A lab that [Lab.Keep] released exists until [Store.Down].
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/vm"
)

// Lab is a network. Its methods are not for concurrent use.
type Lab struct {
	Options Options // the options that the lab was built with, with defaults filled in

	store       Store
	state       *os.File                // holds the lock while this process owns the lab
	modes       map[string]podlink.Mode // link modes by name
	mode        podlink.Mode            // of all pods; nil without pods, and in a lab of a file
	namespaces  map[string]*netns.Namespace
	pods        map[string]attached  // by place
	cgroup      string               // path of the lab's control group; empty without one
	datapath    *datapath.Datapath   // nil without one, and in a lab of a file
	opened      []*datapath.Datapath // all that are open
	kubeProxy   *proxy               // nil until it is opened
	listTable   knftables.Interface  // of an allow list; nil until it is opened
	switches    map[string]string    // sockets of the databases of Open vSwitch, by namespace
	ovsDatapath string               // kind of the Open vSwitch datapath; empty without one
	docker      *engine              // nil without Docker
	children    []*exec.Cmd          // dockerd, and relays of tap and tun links: they end with the lab
	guest       guestPod             // what all guests have: a kernel, and how it runs
	guests      map[string]*guestPod // by place
	kept        bool
}

type attached struct {
	device  string
	mode    podlink.Mode
	network podlink.Network
	pod     podlink.Pod
}

// Up builds a lab. It belongs to this process until [Lab.Close] or [Lab.Keep]. On error, and when ctx ends, Up removes
// what it built. Invalid options are an [*OptionError], and a name in use is a [*NameError].
func (s Store) Up(ctx context.Context, o Options) (_ *Lab, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(o.CheckInstalled(), o.Probe()); err != nil {
		return nil, fmt.Errorf("lab %s: %w", o.Name, err)
	}
	l := &Lab{
		Options: o, store: s, modes: map[string]podlink.Mode{}, namespaces: map[string]*netns.Namespace{},
		pods: map[string]attached{}, guests: map[string]*guestPod{}, switches: map[string]string{},
	}
	if l.state, err = s.claim(o); err != nil {
		if !errors.Is(err, os.ErrExist) {
			err = fmt.Errorf("lab %s: %w", o.Name, err)
		}
		return nil, err
	}
	if err := requireFree(o.Name); err != nil { // else the end of this lab would remove the other one
		return nil, errors.Join(fmt.Errorf("lab %s: %w", o.Name, err), os.Remove(s.statePath(o.Name)), l.state.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("lab %s: %w", o.Name, err), l.Close())
		}
	}()
	for _, link := range o.links() {
		if l.modes[link], err = probedMode(link); err != nil {
			return nil, err
		}
	}
	l.mode = l.modes[o.Link]
	if o.Guests {
		if l.guest.Kernel, err = vm.FetchKernel(ctx, ""); err != nil {
			return nil, err
		}
		if l.guest.Acceleration, err = vm.Acceleration(ctx, l.guest.Kernel); err != nil {
			return nil, err
		}
	}
	if err := l.addCgroup(); err != nil {
		return nil, err
	}
	if err := cmp.Or(o.topology().build(ctx, l), ctx.Err()); err != nil {
		return nil, err
	}
	if s.InPod {
		return l, nil
	}
	// A program that sets its congestion control itself has connected before. If the machine's default paces by a timer,
	// as bbr does, its connection goes on pacing.
	for _, ns := range l.namespaces {
		if err := rtnl.In(ns).SetCongestion(Congestion); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
	}
	return l, nil
}

// requireFree returns an error if a lab of another state directory has the name: it has the control group.
func requireFree(name string) error {
	path, err := cgroupPath(name)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("a lab of another --state-dir has this name (%w): choose another --name", os.ErrExist)
	}
	return nil
}

func probedMode(name string) (podlink.Mode, error) {
	mode, err := podlink.Lookup(name)
	if err != nil {
		return nil, err
	}
	return mode, mode.Probe()
}

// hostSysctls are set to 0 in a host before it has devices. A host that forwards a packet through the device that it
// came from would otherwise redirect the sender to the next hop, past the host's address translation.
var hostSysctls = []string{"net/ipv4/conf/all/send_redirects", "net/ipv4/conf/default/send_redirects"}

// loadSysctls are set in each place, for the connections of a load generator. A connection that carries load in turns
// keeps its congestion window while it is idle. A client that opens many short connections does not run out of ports.
// No connection begins with what an earlier one to the same address has learnt: 10,000 addresses cost as ten do.
var loadSysctls = []rtnl.Sysctl{
	{Key: "net/ipv4/tcp_slow_start_after_idle", Value: "0"},
	{Key: "net/ipv4/tcp_tw_reuse", Value: "1"},
	{Key: "net/ipv4/tcp_no_metrics_save", Value: "1"},
	{Key: "net/ipv4/ip_local_port_range", Value: "10000\t65535"},
}

// addNamespace creates the namespace of a place and sets some of its sysctls to 0.
func (l *Lab) addNamespace(place string, zeroSysctls ...string) (*netns.Namespace, error) {
	ns, err := netns.Create(namespaceName(l.Options.Name, place))
	if err != nil {
		return nil, err
	}
	l.namespaces[place] = ns
	zero := convert(zeroSysctls, func(key string) rtnl.Sysctl { return rtnl.Sysctl{Key: key, Value: "0"} })
	return ns, rtnl.In(ns).SetSysctls(slices.Concat(loadSysctls, zero), nil)
}

// addHost creates the namespace of a host. Its bridges pass packets to the firewall's rules for routed packets only
// if a bridge's own attribute is set. Further sysctls are set to 0.
func (l *Lab) addHost(place string, zeroSysctls ...string) (*netns.Namespace, error) {
	ns, err := l.addNamespace(place, append(zeroSysctls, hostSysctls...)...)
	if err != nil {
		return nil, err
	}
	return ns, podlink.DisableNetfilterCall(ns)
}

// Places returns the names of the places with a network namespace, sorted: all but guests.
func (l *Lab) Places() []string { return slices.Sorted(maps.Keys(l.namespaces)) }

// Namespace returns the network namespace of a place. It belongs to the lab.
func (l *Lab) Namespace(place string) (*netns.Namespace, error) {
	ns, ok := l.namespaces[place]
	if !ok {
		return nil, fmt.Errorf("lab %s: no place %q (places: %s)", l.Options.Name, place, strings.Join(l.Places(), ", "))
	}
	return ns, nil
}

// HookChain is a chain of rules at a netfilter hook.
type HookChain = nodenet.HookChain

// Hooks returns the nftables chains at the IP hooks of a place, including the chains of iptables-nft.
func (l *Lab) Hooks(place string) ([]HookChain, error) {
	ns, err := l.Namespace(place)
	if err != nil {
		return nil, err
	}
	chains, err := nodenet.HookChains(ns)
	if err != nil {
		return nil, fmt.Errorf("netfilter hooks of %s: %w", place, err)
	}
	return chains, nil
}

// Device returns the name of a pod's device: [IfName], or another one if the link mode requires it.
func (l *Lab) Device(pod string) string { return l.pods[pod].device }

// Acceleration returns how the lab's guests run: "kvm", or "tcg" for emulation. It is empty without guests.
func (l *Lab) Acceleration() string { return l.guest.Acceleration }

// Start starts cmd at a place, in its network namespace and in the lab's control group. cmd.SysProcAttr must not be
// set. At a guest it boots the guest for cmd, see [RunGuest]. In a container it runs cmd with `docker exec`; cmd has
// to be a command of the running program.
func (l *Lab) Start(place string, cmd *exec.Cmd) (err error) {
	ns := l.namespaces[place]
	switch g := l.guests[place]; {
	case g != nil:
		err = g.start(cmd, l.startIn)
	case ns == nil:
		_, err = l.Namespace(place)
		return err
	case l.docker != nil && slices.Contains(containers, place):
		err = l.docker.wrap(place, cmd)
	}
	if err != nil {
		return fmt.Errorf("lab %s: %w", l.Options.Name, err)
	}
	if ns == nil {
		return nil
	}
	return l.startIn(ns, cmd)
}

// Keep releases the lab from this process. It exists until [Store.Down].
func (l *Lab) Keep() error {
	file, err := l.store.change(l.Options.Name, func(i *Info) { i.Options, i.Standing = l.Options, true })
	if err != nil {
		return fmt.Errorf("lab %s: keep: %w", l.Options.Name, err)
	}
	l.kept = true
	return file.Close()
}

// Close releases the resources of this process, and removes the lab with all processes in it unless it was kept.
func (l *Lab) Close() error {
	errs := convert(l.opened, (*datapath.Datapath).Close)
	l.datapath, l.opened = nil, nil
	for _, ns := range l.namespaces {
		errs = append(errs, ns.Close())
	}
	clear(l.namespaces)
	if l.state != nil {
		if !l.kept {
			errs = append(errs, l.store.destroy(l.Options.Name))
			for _, child := range l.children { // killed by then
				if err := child.Wait(); !errors.As(err, new(*exec.ExitError)) {
					errs = append(errs, err)
				}
			}
			l.children, l.docker = nil, nil
		}
		errs = append(errs, l.state.Close())
		l.state = nil
	}
	return errors.Join(errs...)
}

const (
	// awaitTimeout limits await. A switch in user space has to learn first where the other host is.
	awaitTimeout = 20 * time.Second
	awaitRetry   = 20 * time.Millisecond // the first wait; each further one takes twice as long
	closedPort   = 9                     // where nothing listens (discard, RFC 863)
)

func (l *Lab) await(ctx context.Context, from, to string, addrs []netip.Addr) error {
	for _, addr := range addrs {
		if err := awaitPath(ctx, l.namespaces[from], addr); err != nil {
			return fmt.Errorf("%s to %s: %w", from, to, err)
		}
	}
	return nil
}

// awaitPath waits until an address is reachable from a namespace, so that no first packet of a measurement is lost. It
// sends datagrams to a port where nothing listens until ICMP reports that, for at most 20 s.
func awaitPath(ctx context.Context, from *netns.Namespace, to netip.Addr) error {
	at := netip.AddrPortFrom(to, closedPort).String()
	conn, err := netns.Get(from, func() (net.Conn, error) { return net.Dial("udp", at) })
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(awaitTimeout)
	for wait := awaitRetry; ; wait = min(2*wait, time.Second) {
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		if _, err = conn.Write([]byte("mustang")); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("no answer from %v in %v: %w", to, awaitTimeout, err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(awaitRetry) // "no route" returns at once
		}
	}
}
