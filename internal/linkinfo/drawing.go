// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"cmp"
	"fmt"
	"html"
	"image"
	"io"
	"slices"
	"strings"
)

// WriteSVG writes a drawing of namespaces as an SVG document, which follows a dark theme. Each namespace is a box
// with its devices except lo. Lines join the ends of veth and netkit pairs, and tunnels to their devices. Lines are
// dashed from a macvlan, ipvlan or VLAN device to its parent, dotted from a port to its bridge. Pods, which are
// joined to only one other namespace, are above that namespace.
func WriteSVG(w io.Writer, inventories []Inventory) error {
	d := newDrawing(inventories)
	d.place()
	var b strings.Builder
	for _, n := range d.spaces {
		d.space(&b, n)
	}
	var edges []string
	for _, e := range d.edges {
		edges = append(edges, d.edge(e))
	}
	slices.Sort(edges) // the kernel numbers namespaces as it likes
	b.WriteString(strings.Join(edges, ""))
	width, height := d.size()
	_, err := fmt.Fprintf(w,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" `+
			`font-size="12">
<style>%s</style>
<rect class="page" width="100%%" height="100%%"/>
%s</svg>
`, width, height, width, height, style, b.String())
	return err
}

const style = `.page{fill:#fff}.space{fill:#f4f6f8;stroke:#a7b0b8}.device{fill:#fff;stroke:#56616b}.edge{fill:none;stroke:#2f6fb3;stroke-width:1.5}` +
	`.name{font-weight:bold}text{fill:#1c2329}.soft{fill:#56616b}` +
	`@media (prefers-color-scheme:dark){.page{fill:#14181c}.space{fill:#1d2329;stroke:#56616b}.device{fill:#14181c;stroke:#a7b0b8}.edge{stroke:#7db3ea}text{fill:#e9ecef}.soft{fill:#a7b0b8}}`

// Measures of a drawing, in pixels. A letter is about as wide as in common sans-serif fonts.
const (
	margin     = 16
	gap        = 24
	rowGap     = 44
	lineHeight = 16
	headHeight = 26
	letter     = 7
)

// drawing is namespaces with their places, the namespaces that devices join, and devices with the lines between them.
type drawing struct {
	spaces  []*space
	byInode map[uint64]*space
	joined  map[[2]uint64]bool
	devices map[key]*device
	edges   []edge
}

// key is a device of a namespace, identified by the namespace's inode.
type key struct {
	space uint64
	index int
}

// space is a namespace. Rows of devices: devices that lead to pods, devices below these, and devices that lead
// further.
type space struct {
	NamespaceInfo
	rows  [3][]*device
	below bool // it is a host
	x, y  int
}

type device struct {
	lines []string
	x, y  int
}

type edge struct {
	from, to key
	dash     string // stroke-dasharray
	title    string
}

func newDrawing(inventories []Inventory) *drawing {
	d := &drawing{byInode: map[uint64]*space{}, joined: map[[2]uint64]bool{}, devices: map[key]*device{}}
	for _, i := range inventories {
		n := &space{NamespaceInfo: i.Namespace}
		d.spaces, d.byInode[n.Inode] = append(d.spaces, n), n
		for _, l := range i.Links {
			d.connect(key{n.Inode, l.Index}, l)
		}
	}
	neighbours := map[uint64]int{}
	for pair := range d.joined {
		neighbours[pair[0]]++
	}
	for _, n := range d.spaces {
		n.below = neighbours[n.Inode] > 1 || len(d.spaces) == 1
	}
	for at, i := range inventories {
		for _, l := range i.Links {
			if l.Kind != "loopback" {
				d.add(d.spaces[at], l)
			}
		}
	}
	d.edges = slices.DeleteFunc(d.edges, func(e edge) bool { return d.devices[e.from] == nil || d.devices[e.to] == nil })
	return d
}

// connect records the devices that a device is joined to. A parent's namespace does not list its children's.
func (d *drawing) connect(at key, l Link) {
	other := func(p *Peer) key {
		if p.Namespace == nil {
			return key{at.space, p.Index}
		}
		inode := p.Namespace.Inode
		d.joined[[2]uint64{at.space, inode}], d.joined[[2]uint64{inode, at.space}] = true, true
		return key{inode, p.Index}
	}
	if l.Peer != nil {
		if to := other(l.Peer); at.space < to.space || at.space == to.space && at.index < to.index {
			d.edges = append(d.edges, edge{at, to, "", l.Kind + " pair"})
		}
	}
	if l.Parent != nil {
		d.edges = append(d.edges, edge{at, other(l.Parent), "6 4", l.Kind + " on " + l.Parent.Name})
	}
	if l.MasterIndex != 0 {
		d.edges = append(d.edges, edge{at, key{at.space, l.MasterIndex}, "2 3", "port of " + l.Master})
	}
}

// add adds a device to its namespace.
func (d *drawing) add(n *space, l Link) {
	v := &device{lines: []string{l.Name, strings.TrimSpace(l.Kind + " " + l.Mode)}}
	for _, a := range l.Addrs {
		if !a.Addr().IsLinkLocalUnicast() || a.Addr().Is4() {
			v.lines = append(v.lines, a.String())
		}
	}
	for _, p := range l.Programs {
		v.lines = append(v.lines, "eBPF "+p.Name)
	}
	wire := false // between hosts
	if l.Peer != nil && l.Peer.Namespace != nil {
		peer := d.byInode[l.Peer.Namespace.Inode]
		wire = peer != nil && peer.below
	}
	row := 2
	switch {
	case !n.below:
		row = 0
	case l.Kind == "bridge" || len(l.Children) > 0:
		row = 1
	case !wire && (l.Peer != nil || l.Kind == "tun"):
		row = 0
	}
	n.rows[row] = append(n.rows[row], v)
	d.devices[key{n.Inode, l.Index}] = v
}

func (v *device) size() (width, height int) {
	longest := 0
	for _, l := range v.lines {
		longest = max(longest, len(l))
	}
	return longest*letter + 16, len(v.lines)*lineHeight + 10
}

// size returns the size of a namespace, and places its devices in it.
func (n *space) size() (width, height int) {
	width, height = len(n.String())*letter+2*margin, headHeight
	for _, row := range n.rows {
		x, tallest := margin, 0
		for _, v := range row {
			v.x, v.y = n.x+x, n.y+height
			w, h := v.size()
			x, tallest = x+w+margin, max(tallest, h)
		}
		width = max(width, x)
		if tallest > 0 {
			height += tallest + gap
		}
	}
	return width, height - gap + margin
}

// place places the namespaces: hosts side by side, and above each the pods that are joined to it first.
func (d *drawing) place() {
	var hosts []*space
	for _, n := range d.spaces {
		if n.below {
			hosts = append(hosts, n)
		}
	}
	pods, tallest := map[*space][]*space{}, 0 // by their host, which may be nil
	for _, n := range d.spaces {
		if n.below {
			continue
		}
		var host *space
		if at := slices.IndexFunc(hosts, func(h *space) bool { return d.joined[[2]uint64{h.Inode, n.Inode}] }); at >= 0 {
			host = hosts[at]
		}
		pods[host] = append(pods[host], n)
		_, h := n.size()
		tallest = max(tallest, h)
	}
	x, y := margin, margin
	if tallest > 0 {
		y += tallest + rowGap
	}
	row := func(spaces []*space) (end int) {
		end = x
		for _, n := range spaces {
			n.x, n.y = end, margin
			w, _ := n.size()
			end += w + gap
		}
		return end
	}
	for _, h := range hosts {
		slices.SortStableFunc(pods[h], func(a, b *space) int { return cmp.Compare(a.String(), b.String()) })
		h.x, h.y = x, y
		w, _ := h.size()
		x = max(x+w+gap, row(pods[h]))
	}
	row(pods[nil])
}

func (d *drawing) size() (width, height int) {
	for _, n := range d.spaces {
		w, h := n.size()
		width, height = max(width, n.x+w+margin), max(height, n.y+h+margin)
	}
	return width, height
}

func (d *drawing) space(b *strings.Builder, n *space) {
	w, h := n.size()
	fmt.Fprintf(b, `<rect class="space" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", n.x, n.y, w, h)
	text(b, "name", image.Pt(n.x+10, n.y+17), d.title(n))
	for _, row := range n.rows {
		for _, v := range row {
			w, h := v.size()
			fmt.Fprintf(b, `<rect class="device" x="%d" y="%d" width="%d" height="%d" rx="3"/>`+"\n", v.x, v.y, w, h)
			for at, line := range v.lines {
				class := "soft"
				if at == 0 {
					class = "name"
				}
				text(b, class, image.Pt(v.x+8, v.y+lineHeight*(at+1)), line)
			}
		}
	}
}

// title is the name of a namespace, without the name of a lab that all have.
func (d *drawing) title(n *space) string {
	prefix, _, found := strings.Cut(n.Name, ".")
	if !found || len(d.spaces) < 2 || slices.ContainsFunc(d.spaces, func(o *space) bool {
		return !strings.HasPrefix(o.Name,
			prefix+".")
	}) {
		return n.String()
	}
	return strings.TrimPrefix(n.Name, prefix+".")
}

// escaped is a text of a document: XML excludes control characters, and bytes that are not UTF-8.
func escaped(s string) string { return html.EscapeString(Printable(s)) }

func text(b *strings.Builder, class string, at image.Point, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, at.X, at.Y, escaped(s))
}

// edge draws a line from the lower end of the upper device to the upper end of the lower one, and between devices of
// one height below both.
func (d *drawing) edge(e edge) string {
	upper, lower := d.devices[e.from], d.devices[e.to]
	if upper.y > lower.y || upper.y == lower.y && upper.x > lower.x {
		upper, lower = lower, upper
	}
	uw, uh := upper.size()
	lw, lh := lower.size()
	path := fmt.Sprintf("M%d %dL%d %d", upper.x+uw/2, upper.y+uh, lower.x+lw/2, lower.y)
	if upper.y+uh > lower.y {
		path = fmt.Sprintf("M%d %dV%dH%dV%d", upper.x+uw/2, upper.y+uh, max(upper.y+uh, lower.y+lh)+margin/2, lower.x+
			lw/2, lower.y+lh)
	}
	return fmt.Sprintf(`<path class="edge" d="%s" stroke-dasharray="%s"><title>%s</title></path>`+
		"\n", path, cmp.Or(e.dash, "none"), escaped(e.title))
}
