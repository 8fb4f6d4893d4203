// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
)

// trial attaches pods and detaches them, and looks whether that really happened.
type trial struct {
	stand  *pluginStand
	plugin *plugin
	pods   int
	atOnce bool
	// first is whether the plugin may leave a device on the host.
	first bool
	kept  []string

	adds, dels []*call
	host       []string // the host's devices before
	files      []string // below the plugins' directories
	empty      int      // devices of a pod with nothing in it
	addresses  []netip.Addr
	evidence   result.Evidence
}

// run returns the measurements of ADD and DEL. Where the evidence does not fit, the
// error is a [*pathError], and the first sample has the evidence.
func (t *trial) run(ctx context.Context) (added, removed sample, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, t.stand.clean(t))
		}
	}()
	if err := t.prepare(); err != nil {
		return added, removed, err
	}
	added.measurement, err = t.batch(verbAdd, t.adds).run(ctx)
	if err != nil {
		return added, removed, err
	}
	if err := t.checkAdded(); err != nil {
		return t.unfit(err)
	}
	for i, c := range t.dels {
		if c.config, err = t.plugin.config(t.stand.dirs, t.adds[i].output); err != nil {
			return added, removed, err
		}
	}
	removed.measurement, err = t.batch(verbDel, t.dels).run(ctx)
	if err != nil {
		return added, removed, err
	}
	if err := t.checkRemoved(); err != nil {
		return t.unfit(err)
	}
	added.evidence, removed.evidence = t.evidence, t.evidence
	return added, removed, nil
}

// unfit is the outcome of a trial that did not do what it should have.
func (t *trial) unfit(err error) (added, removed sample, _ error) {
	t.evidence.Findings = append(t.evidence.Findings, err.Error())
	added.evidence = t.evidence
	return added, removed, &pathError{t.evidence.Findings}
}

func (t *trial) batch(verb string, calls []*call) batch {
	return batch{verb: verb, host: t.stand.host, calls: calls, atOnce: t.atOnce, watch: t.stand.watch}
}

// prepare makes the calls, and looks at what there is before.
func (t *trial) prepare() error {
	s := t.stand
	if err := s.ready(t.plugin, t.pods); err != nil {
		return err
	}
	program, err := t.plugin.executable()
	if err != nil {
		return err
	}
	config, err := t.plugin.config(s.dirs, nil)
	if err != nil {
		return err
	}
	s.batches++
	base := t.plugin.environment(program, s.dirs)
	for i, pod := range s.pods[:t.pods] {
		env := append(slices.Clone(base), fmt.Sprintf("CNI_CONTAINERID=bench-%d-%d", s.batches, i), "CNI_NETNS="+pod.ns.Path())
		t.adds = append(t.adds, &call{program: program, config: config, env: append(slices.Clone(env), "CNI_COMMAND="+verbAdd)})
		t.dels = append(t.dels, &call{program: program, config: config, env: append(env, "CNI_COMMAND="+verbDel)})
	}
	devices, err := s.pods[0].ns.Devices()
	if err != nil {
		return err
	}
	t.empty = len(devices)
	if t.host, err = t.hostDevices(); err != nil {
		return err
	}
	t.files, err = t.pluginFiles()
	t.evidence.Attachments = &result.Attachments{Kept: s.proven[t.plugin].kept}
	return err
}

func (t *trial) hostDevices() ([]string, error) {
	devices, err := t.stand.host.Devices()
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names, err
}

// pluginFiles lists the files that plugins keep.
func (t *trial) pluginFiles() ([]string, error) {
	var out []string
	for _, dir := range []string{t.stand.dirs.State, t.stand.dirs.Run} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				out = append(out, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkAdded looks for each address on its pod's device and among those reserved,
// and connects from a pod.
func (t *trial) checkAdded() error {
	files, err := t.pluginFiles()
	if err != nil {
		return err
	}
	reserved := map[string]bool{}
	for _, file := range files {
		reserved[filepath.Base(file)] = true
	}
	for i, c := range t.adds {
		a, err := c.parse()
		if err != nil {
			return err
		}
		pod := t.stand.pods[i]
		device, err := pod.ns.Device(lab.IfName)
		if err != nil {
			return fmt.Errorf("%s after %s: %w", pod.name, verbAdd, err)
		}
		for _, ip := range a.IPs {
			addr := ip.Address.Addr()
			has := slices.ContainsFunc(device.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
			switch {
			case !has || !device.Up:
				return fmt.Errorf("%s of %s has %v (up: %t), the result says %s", lab.IfName, pod.name, device.Addrs, device.Up, addr)
			case !reserved[addr.String()]:
				return fmt.Errorf("%s of %s is not reserved", addr, pod.name)
			case slices.Contains(t.addresses, addr):
				return fmt.Errorf("%s was given out twice", addr)
			case !t.plugin.subnet.Contains(addr):
				return fmt.Errorf("%s is not in %s", addr, t.plugin.subnet)
			}
			t.addresses = append(t.addresses, addr)
		}
		t.evidence.Attachments.Added++
	}
	if err := t.checkEndpoints(); err != nil {
		return err
	}
	return t.reach(t.stand.pods[t.pods-1])
}

// checkEndpoints looks whether the eBPF datapath knows the pods, or knows none.
func (t *trial) checkEndpoints() error {
	known, err := t.stand.lab.PluginPods()
	if err != nil {
		return err
	}
	packets, sockets := t.plugin.services == servicesBoth, t.plugin.services == servicesSocket
	switch {
	case !packets && len(known.Endpoints) > 0:
		return fmt.Errorf("the eBPF datapath has %d endpoints, without services per packet", len(known.Endpoints))
	case !sockets && len(known.Sockets) > 0:
		return fmt.Errorf("the eBPF datapath has %d pods with sockets only", len(known.Sockets))
	}
	for i := range t.adds {
		if cookie, err := t.stand.pods[i].ns.Cookie(); err != nil {
			return err
		} else if sockets && !slices.Contains(known.Sockets, cookie) {
			return fmt.Errorf("the sockets of %s are unknown to the eBPF datapath", t.stand.pods[i].name)
		}
	}
	for _, addr := range t.addresses {
		if packets && !slices.Contains(known.Endpoints, addr) {
			return fmt.Errorf("%s is no endpoint of the eBPF datapath", addr)
		}
	}
	return nil
}

// reachTimeout is how long a connection may take, with a packet lost.
const reachTimeout = 3 * time.Second

// reach connects from a pod to its gateway, which says who it is.
func (t *trial) reach(from *pod) error {
	to := netip.AddrPortFrom(t.plugin.gatewayAddress(), lab.ServicePort)
	var who []byte
	err := from.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(to.Addr().String(), strconv.Itoa(int(to.Port()))), reachTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(reachTimeout)); err != nil {
			return err
		}
		t.evidence.Client = result.Addresses{Local: conn.LocalAddr().String(), Peer: conn.RemoteAddr().String()}
		who, err = io.ReadAll(conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s can't reach its gateway: %w", from.name, err)
	}
	if string(who) != t.plugin.gateway {
		return fmt.Errorf("%s answered as %q, not %q", to, who, t.plugin.gateway)
	}
	t.evidence.Attachments.Reached = fmt.Sprintf("%s (%s)", to.Addr(), who)
	device, err := from.ns.Device(lab.IfName)
	if err != nil {
		return err
	}
	seen := result.DeviceCount{Host: "pod", Name: lab.IfName, RxPackets: device.RxPackets, TxPackets: device.TxPackets}
	t.evidence.Devices = []result.DeviceCount{seen}
	return nil
}

// checkRemoved looks for what the plugin left.
func (t *trial) checkRemoved() error {
	for _, pod := range t.stand.pods[:t.pods] {
		devices, err := pod.ns.Devices()
		if err != nil {
			return err
		}
		if len(devices) != t.empty {
			return fmt.Errorf("%s has %d devices after %s, and had %d", pod.name, len(devices), verbDel, t.empty)
		}
		t.evidence.Attachments.Removed++
	}
	if err := t.checkHost(); err != nil {
		return err
	}
	files, err := t.pluginFiles()
	if err != nil {
		return err
	}
	for _, file := range files {
		addr, err := netip.ParseAddr(filepath.Base(file))
		switch {
		case err == nil && slices.Contains(t.addresses, addr):
			return fmt.Errorf("%s is reserved after %s", addr, verbDel)
		case !t.first && !slices.Contains(t.files, file):
			return fmt.Errorf("%s has %s after %s", t.plugin.program, file, verbDel)
		}
	}
	known, err := t.stand.lab.PluginPods()
	if left := len(known.Endpoints) + len(known.Sockets); err == nil && left > 0 {
		err = fmt.Errorf("the eBPF datapath has %d pods after %s", left, verbDel)
	}
	return err
}

// checkHost looks for devices that are new on the host. The first of all calls may
// leave one that is no end of a pod's link.
func (t *trial) checkHost() error {
	devices, err := t.stand.host.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		switch {
		case slices.Contains(t.host, d.Name):
		case t.first && shared(d) && len(t.kept) == 0:
			t.kept = append(t.kept, d.Name)
		default:
			return fmt.Errorf("the host has %s %s after %s", d.Kind, d.Name, verbDel)
		}
	}
	return nil
}

// mergeAttachments adds the evidence of further calls.
func mergeAttachments(sum *result.Evidence, a *result.Attachments) {
	if a == nil {
		return
	}
	total := *a
	if sum.Attachments != nil {
		total.Added += sum.Attachments.Added
		total.Removed += sum.Attachments.Removed
	}
	sum.Attachments = &total
}

// shared reports whether a device is such as all pods of a network share.
func shared(d nl.Device) bool { return slices.Contains([]string{"bridge", "macvlan", "dummy"}, d.Kind) }
