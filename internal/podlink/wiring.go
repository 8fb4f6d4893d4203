// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pair is the two ends of a pod's link, one on the host and one in the pod. The
// pod's is nil if the pod brings its own.
type pair struct{ host, pod netlink.Link }

// wiring is a way to make the two ends, for modes that have one on the host.
type wiring interface {
	// kind is what the kernel calls both ends.
	kind() string
	// needs is the mode's Needs.
	needs() Need
	// requires is what the kernel must be able to do.
	requires() requirement
	// add creates both ends, down, each in its namespace. If it fails there is none.
	add(host, inside side, network Network, pod Pod) (pair, error)
	// check notes in what two devices of that kind are not such ends. Either may be
	// nil.
	check(c *checker, host, inside side, ends pair)
}

// relayed reports whether the ends have no carrier until a program joins them.
func relayed(w wiring) bool { return w.needs() == NeedsRelay }

// freeNames is an error that matches fs.ErrExist if the name of an end is taken.
func freeNames(host, inside side, pod Pod) error {
	if err := host.mustBeFree(pod.HostIfName); err != nil {
		return err
	}
	if inside.ns == nil {
		return nil
	}
	return inside.mustBeFree(pod.IfName)
}

// addPair creates a device on the host whose other end the kernel creates in the
// pod.
func addPair(host, inside side, pod Pod, link netlink.Link) (_ pair, err error) {
	err = host.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) { // it does not tell which of the names
		err = errors.Join(freeNames(host, inside, pod), err)
	}
	if err != nil {
		return pair{}, describeAdd(err, pod.HostIfName, link.Type(), host.ns)
	}
	out := pair{host: link} // LinkAdd has looked up its index
	if out.pod, err = inside.link(pod.IfName); err != nil {
		return pair{}, errors.Join(err, host.remove(pod.HostIfName, link.Type()))
	}
	return out, nil
}

// removeEnds deletes both ends of a link, as far as they are there. Those that
// the kernel made as a pair go together.
func removeEnds(w wiring, host, inside side, pod Pod) error {
	err := host.remove(pod.HostIfName, w.kind())
	if relayed(w) && inside.ns != nil {
		err = errors.Join(err, inside.remove(pod.IfName, w.kind()))
	}
	return err
}

// deleteEnds is the Delete of modes with two ends. The pod may be gone.
func deleteEnds(w wiring, network Network, pod Pod) (err error) {
	if err := pod.validateDelete(network); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	var inside side
	if relayed(w) && pod.Namespace != nil {
		if inside, err = pod.openInside(); err != nil {
			return err
		}
		defer inside.Close()
	}
	return removeEnds(w, host, inside, pod)
}

func (p pair) attachment(pod Pod, node net.HardwareAddr) Attachment {
	out := Attachment{
		HostIfName:  pod.HostIfName,
		HostIfIndex: p.host.Attrs().Index,
		HostMAC:     macOf(p.host),
		Addresses:   slices.Clone(pod.Addresses),
		NodeMAC:     slices.Clone(node),
	}
	if p.pod != nil {
		out.IfName, out.IfIndex, out.MAC = pod.IfName, p.pod.Attrs().Index, macOf(p.pod)
	}
	return out
}

// pair notes whether two devices are not each other's peer.
func (c *checker) pair(host, inside side, ends pair) {
	if c.err == nil && ends.host != nil && ends.pod != nil && ends.host.Attrs().ParentIndex != ends.pod.Attrs().Index {
		c.add("device %q in %q is not the peer of %q in %q",
			ends.host.Attrs().Name, host.ns.Name(), ends.pod.Attrs().Name, inside.ns.Name())
	}
}
