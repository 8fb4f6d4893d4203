// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// sameNamespace is the netnsid that means the namespace itself.
const sameNamespace = -1

// rawLink is a link as the library parses it, with the attributes that the library omits.
type rawLink struct {
	link netlink.Link
	// attributes are those of the message, info those in its IFLA_LINKINFO.
	attributes, info map[uint16][]byte
}

// attributesOf splits netlink attributes. The library has rejected malformed ones before.
func attributesOf(data []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	parsed, _ := vnl.ParseRouteAttr(data)
	for _, attribute := range parsed {
		kind := attribute.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		out[kind] = attribute.Value
	}
	return out
}

// listLinks reads the links of n, or of the namespace with netnsid nsid in n, sorted by index. That namespace needs neither an
// open descriptor nor a name.
func listLinks(n *netns.Namespace, nsid int) ([]Link, error) {
	messages, err := rtnl.Dump(func() (messages [][]byte, err error) {
		request := vnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
		if nsid != sameNamespace {
			request.AddData(vnl.NewRtAttr(unix.IFLA_TARGET_NETNSID, vnl.Uint32Attr(uint32(nsid))))
		}
		// Outside a handle, a request opens a socket in the thread's namespace.
		err = n.Do(func() error {
			messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
			return err
		})
		return messages, err
	})
	if err != nil {
		return nil, fmt.Errorf("list devices in network namespace %q: %w", n.Name(), err)
	}
	links := make([]Link, 0, len(messages))
	for _, message := range messages {
		link, err := netlink.LinkDeserialize(nil, message)
		if err != nil {
			return nil, fmt.Errorf("read a device in network namespace %q: %w", n.Name(), err)
		}
		attributes := attributesOf(message[unix.SizeofIfInfomsg:])
		links = append(links, newLink(rawLink{link, attributes, attributesOf(attributes[unix.IFLA_LINKINFO])}))
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	return links, nil
}
