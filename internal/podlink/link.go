// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"slices"
)

// driver is the part in which link modes differ. linkMode makes a Mode of it.
type driver interface {
	// Name, Traits and Probe are those of Mode.
	Name() string
	Traits() Traits
	Probe() error
	validateNetwork(network Network) error
	// setup and teardown are those of Mode in the host's namespace. setup gets a valid network.
	setup(host nsHandle, network Network) error
	teardown(host nsHandle, network Network) error
	// podConfig validates a network and a pod, and returns the configuration of the pod's device.
	podConfig(network Network, pod Pod) (podConfig, error)
	create(s session) (Attachment, error)
	check(c *checker, s session)
	remove(network Network, pod Pod) error
}

// session is a pod of a network with open namespaces. A pod without a namespace has a handle without one.
type session struct {
	Network
	pod          Pod
	config       podConfig
	host, inside nsHandle
}

// linkMode implements Mode by a driver.
type linkMode struct{ driver }

func (linkMode) sealed() {}

// Setup implements Mode.
func (l linkMode) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+l.Name()+" network")
	if err := l.validateNetwork(network); err != nil {
		return err
	}
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	defer host.undo.onError(&err)
	return l.setup(host, network)
}

// Teardown implements Mode.
func (l linkMode) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+l.Name()+" network")
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	return l.teardown(host, network)
}

// Create implements Mode.
func (l linkMode) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+l.Name()+" link")
	err = l.open(network, pod, func(s session) (err error) {
		defer s.host.undo.onError(&err)
		if out, err = l.create(s); err == nil {
			out.Prefixes, out.MTU, out.Routes = slices.Clone(s.config.addrs), s.config.mtu, slices.Clone(s.config.routes)
		}
		return err
	})
	return out, err
}

// Check implements Mode.
func (l linkMode) Check(network Network, pod Pod) error {
	var c checker
	err := l.open(network, pod, func(s session) error {
		l.check(&c, s)
		return c.err
	})
	if err != nil {
		return fmt.Errorf("check %s link of pod %q: %w", l.Name(), pod.name(), err)
	}
	return c.result(l, pod)
}

// Delete implements Mode.
func (l linkMode) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+l.Name()+" link")
	return l.remove(network, pod)
}

// open calls do with a valid network and pod.
func (l linkMode) open(network Network, pod Pod, do func(session) error) error {
	config, err := l.podConfig(network, pod)
	if err != nil {
		return err
	}
	s := session{Network: network, pod: pod, config: config}
	if s.host, err = network.open(network.Host); err != nil {
		return err
	}
	defer s.host.Close()
	if pod.Namespace != nil {
		if s.inside, err = network.open(pod.Namespace); err != nil {
			return err
		}
		defer s.inside.Close()
		s.inside.undo = s.host.undo
	}
	return do(s)
}

// bothEnds checks the two ends of a pod's link.
func (c *checker) bothEnds(t linkType, s session, outside deviceSpec) (ends linkEnds) {
	outside.name, outside.kind, outside.mtu = s.pod.HostIfName, t.kind, s.mtu()
	ends.host = c.device(s.host, outside)
	if s.inside.ns != nil {
		ends.pod = c.device(s.inside, s.config.spec(s.pod))
	}
	t.check(c, s, ends)
	return ends
}
