// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Policed has the packets of pods that start under policies, as they arrive outside. Times begin with a pod's process,
// which sends a packet at once, then every 20 ms, and after a second every 120 ms.
type Policed struct {
	Denied, Allowed int             // pods by what their policies are
	Leaked          int             // denied pods with a packet that arrived
	Last            time.Duration   // of the last packet that leaked
	First           []time.Duration // of the first packet of each allowed pod
	Started         time.Duration   // from the request to the API server until all pods are ready
}

const (
	policiesSettle = 5 * time.Second  // how old policies are when pods start
	leakTime       = 10 * time.Second // how long packets are counted after all pods are ready
)

// sender is a pod whose packets arrived: when its process began, and when its first and its last packet came.
type sender struct{ begun, first, last time.Time }

// StartPoliced starts pods that a policy denies all packets, and others that may send to one address outside. It
// removes the pods, but not the policies.
func (c *Cluster) StartPoliced(denied, allowed int) (p Policed, err error) {
	image, err := c.Programs.Agnhost(c.ctx)
	if err != nil {
		return p, err
	}
	var socket *net.UDPConn
	if err := c.outside.Do(func() (err error) {
		socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 197, 0, 1)})
		return err
	}); err != nil {
		return p, err
	}
	senders := map[string]sender{}
	var reader sync.WaitGroup
	reader.Go(func() { receive(socket, senders) })
	fields := map[string]any{"Image": image, "Address": "10.197.0.1", "Port": socket.LocalAddr().(*net.UDPAddr).Port}
	apply := func(pods map[string]int) error {
		fields["Pods"] = pods
		objects, err := render("policed.yaml", fields)
		return errors.Join(err, c.apply(objects))
	}
	err = apply(nil)
	time.Sleep(policiesSettle)
	before, begun := c.shims(), time.Now()
	err = errors.Join(err, apply(map[string]int{"denied": denied, "allowed": allowed}))
	for _, name := range []string{"denied", "allowed"} {
		_, late := c.kubectl(nil, "-n", "policed", "rollout", "status", "deployment/"+name, "--timeout=300s")
		err = errors.Join(err, late)
	}
	p.Started = time.Since(begun)
	time.Sleep(leakTime)
	err = errors.Join(err, socket.Close())
	reader.Wait()
	_, removed := c.kubectl(nil, "-n", "policed", "delete", "deployment", "--all", "--timeout=60s")
	_, gone := c.kubectl(nil, "-n", "policed", "wait", "pod", "--all", "--for=delete", "--timeout=300s")
	p.Denied, p.Allowed = denied, allowed
	for name, s := range senders {
		if strings.HasPrefix(name, "allowed-") {
			p.First = append(p.First, s.first.Sub(s.begun))
			continue
		}
		p.Leaked++
		p.Last = max(p.Last, s.last.Sub(s.begun))
	}
	if len(p.First) != allowed {
		err = errors.Join(err, fmt.Errorf("packets of %d of %d allowed pods arrived", len(p.First), allowed))
	}
	return p, errors.Join(err, removed, gone, c.shimsEnd(before))
}

// receive records packets until the socket is closed.
func receive(socket *net.UDPConn, senders map[string]sender) {
	packet := make([]byte, 256)
	for {
		size, err := socket.Read(packet)
		if err != nil {
			return
		}
		now := time.Now()
		var name string
		var begun int64
		if _, err := fmt.Sscan(string(packet[:size]), &name, &begun); err != nil {
			continue
		}
		s, known := senders[name]
		if !known {
			s.begun, s.first = time.UnixMicro(begun), now
		}
		s.last = now
		senders[name] = s
	}
}
