// SPDX-License-Identifier: Apache-2.0

// Package cnibench measures how long ADD or DEL of a CNI plugin takes, called as a container runtime calls it. After
// each ADD and DEL it checks that the plugin did so: addresses, reservations, connectivity, and what remains after DEL.
package cnibench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/netns"
	"mustang/internal/result"
	"mustang/internal/rtnl"
)

// LabOptions describes the lab of a [Testbed].
func LabOptions() lab.Options { return lab.Options{Topology: lab.TopologyNode, Link: lab.LinkHost} }

// Testbed runs plugins in a lab, with the pods that they attach. Its methods must not be called concurrently.
type Testbed struct {
	lab       *lab.Lab
	host      *netns.Namespace
	dirs      lab.PluginDirs
	pods      []*pod
	watch     *clock.Machine
	listeners []net.Listener
	proven    map[*Plugin]proof
	pending   map[Batch]map[string]Sample // by batch without a workload, and by workload
	gateways  map[*Plugin]bool            // configured ones
	agent     *agent                      // nil before a plugin needs it
	trials    int
}

type pod struct {
	name string
	ns   *netns.Namespace
}

// proof is the outcome of [Testbed.Prove], with the devices that a plugin keeps on the host.
type proof struct {
	kept []string
	err  error
}

// Batch is a number of calls of one verb that make a sample. ADD and DEL of the same pods are measured together.
type Batch struct {
	Row        string // the ID of the row that the sample is for
	Plugin     *Plugin
	Workload   string // [result.WorkloadCNIAdd] or [result.WorkloadCNIDel]
	Pods       int    // each is attached by a call of its own
	Concurrent bool   // makes all calls at once instead of one after the other
}

// Sample is the measurement of a batch with its evidence.
type Sample struct {
	Measurement load.Measurement
	Evidence    result.Evidence
}

// NewTestbed returns a testbed in a lab that was built from [LabOptions]. The lab must outlive it.
func NewTestbed(l *lab.Lab) (_ *Testbed, err error) {
	t := &Testbed{
		lab: l, dirs: l.PluginDirs(), proven: map[*Plugin]proof{}, pending: map[Batch]map[string]Sample{},
		gateways: map[*Plugin]bool{},
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.host, err = l.Namespace(lab.Host); err != nil {
		return nil, err
	}
	if t.watch, err = clock.OpenMachine(); err != nil {
		return nil, err
	}
	for _, place := range []string{lab.Host, lab.Outside} {
		if err := t.listen(place); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Close releases everything but the lab.
func (t *Testbed) Close() {
	if t.agent != nil {
		t.agent.stop()
	}
	for _, listener := range t.listeners {
		_ = listener.Close()
	}
	if t.watch != nil {
		t.watch.Close()
	}
}

// Note returns a remark on all rows of the testbed, or "".
func (t *Testbed) Note() string {
	var fs unix.Statfs_t
	if unix.Statfs(t.dirs.State, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		return "reserved addresses were kept in memory (tmpfs), not on a disk"
	}
	return ""
}

func (t *Testbed) listen(place string) error {
	ns, err := t.lab.Namespace(place)
	if err != nil {
		return err
	}
	listener, err := netns.Get(ns, func() (net.Listener, error) {
		return net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", lab.ServicePort))
	})
	if err != nil {
		return err
	}
	t.listeners = append(t.listeners, listener)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(place))
			_ = conn.Close()
		}
	}()
	return nil
}

// prepare creates pods up to the given number, the agent if the plugin needs it, and a gateway beyond the uplink.
func (t *Testbed) prepare(plugin *Plugin, pods int) error {
	for len(t.pods) < pods {
		name := fmt.Sprintf("pod-%d", len(t.pods)+1)
		ns, err := t.lab.AddPod(name)
		if err != nil {
			return err
		}
		t.pods = append(t.pods, &pod{name, ns})
	}
	if plugin.Agent && t.agent == nil {
		program, err := plugin.executable()
		if err != nil {
			return err
		}
		if t.agent, err = startAgent(t.host, t.dirs, program); err != nil {
			return err
		}
	}
	if plugin.Gateway != lab.Outside || t.gateways[plugin] {
		return nil
	}
	ns, err := t.lab.Namespace(lab.Outside)
	if err != nil {
		return err
	}
	t.gateways[plugin] = true
	address := netip.PrefixFrom(plugin.gatewayAddress(), plugin.Subnet.Bits())
	return rtnl.In(ns).Configure(lab.OutsideIfName, rtnl.DeviceConfig{Up: true, Addresses: []netip.Prefix{address}})
}

const cleanTimeout = time.Minute // limits the clean-up after a failed trial

// clean detaches the pods of a failed trial and replaces them, so that other plugins find empty pods.
func (t *Testbed) clean(dels []*call) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	for i, c := range dels {
		_ = t.host.Do(func() error { return c.run(ctx) })
		pod := t.pods[i]
		err = errors.Join(err, t.lab.DeletePod(pod.name))
		ns, addErr := t.lab.AddPod(pod.name)
		if addErr != nil {
			return errors.Join(err, addErr)
		}
		pod.ns = ns
	}
	return err
}
