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
	var page image.Rectangle
	for _, n := range d.spaces {
		n.draw(&b)
		page = page.Union(n.Rectangle)
	}
	var edges []string
	for _, e := range d.edges {
		if from, to := d.devices[e.from], d.devices[e.to]; from != nil && to != nil {
			edges = append(edges, e.draw(from, to))
		}
	}
	slices.Sort(edges) // the kernel numbers namespaces as it likes
	width, height := page.Max.X+margin, page.Max.Y+margin
	_, err := fmt.Fprintf(w,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" `+
			`font-size="12">
<style>%s</style>
<rect class="page" width="100%%" height="100%%"/>
%s%s</svg>
`, width, height, width, height, style, b.String(), strings.Join(edges, ""))
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

type drawing struct {
	spaces  []*space
	joined  map[[2]uint64]bool // pairs of namespaces, by inode, that a device joins; in both orders
	devices map[key]*device
	edges   []edge
}

type key struct {
	space uint64
	index int
}

// space is a namespace. Rows of devices: to pods, below these, and further.
type space struct {
	image.Rectangle
	NamespaceInfo
	title string // the name, without the name of a lab that all have
	host  bool
	rows  [3][]*device
}

type device struct {
	image.Rectangle
	lines []string
}

type edge struct {
	from, to key
	dash     string // stroke-dasharray
	title    string
}

func newDrawing(inventories []Inventory) *drawing {
	d := &drawing{joined: map[[2]uint64]bool{}, devices: map[key]*device{}}
	prefix := ""
	for _, i := range inventories {
		for _, l := range i.Links {
			d.connect(key{i.Namespace.Inode, l.Index}, l)
		}
		lab, _, _ := strings.Cut(i.Namespace.Name, ".")
		prefix = lab + "."
	}
	if len(inventories) < 2 || slices.ContainsFunc(inventories, func(i Inventory) bool {
		return !strings.HasPrefix(i.Namespace.Name, prefix)
	}) {
		prefix = ""
	}
	neighbours := map[uint64]int{}
	for pair := range d.joined {
		neighbours[pair[0]]++
	}
	isHost := func(n NamespaceInfo) bool { return neighbours[n.Inode] > 1 || len(inventories) == 1 }
	for _, i := range inventories {
		n := &space{NamespaceInfo: i.Namespace, host: isHost(i.Namespace),
			title: strings.TrimPrefix(i.Namespace.String(), prefix)}
		for _, l := range i.Links {
			row, wire := 2, l.Peer != nil && l.Peer.Namespace != nil && isHost(*l.Peer.Namespace) &&
				slices.ContainsFunc(inventories, func(o Inventory) bool {
					return o.Namespace.Inode == l.Peer.Namespace.Inode
				})
			switch {
			case l.Kind == "loopback":
				continue
			case !n.host:
				row = 0
			case l.Kind == "bridge" || len(l.Children) > 0:
				row = 1
			case !wire && (l.Peer != nil || l.Kind == "tun"):
				row = 0
			}
			v := newDevice(l)
			n.rows[row] = append(n.rows[row], v)
			d.devices[key{n.Inode, l.Index}] = v
		}
		n.layout()
		d.spaces = append(d.spaces, n)
	}
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
			d.edges = append(d.edges, edge{at, to, "none", l.Kind + " pair"})
		}
	}
	if l.Parent != nil {
		d.edges = append(d.edges, edge{at, other(l.Parent), "6 4", l.Kind + " on " + l.Parent.Name})
	}
	if l.MasterIndex != 0 {
		d.edges = append(d.edges, edge{at, key{at.space, l.MasterIndex}, "2 3", "port of " + l.Master})
	}
}

func newDevice(l Link) *device {
	v := &device{lines: []string{l.Name, strings.TrimSpace(l.Kind + " " + l.Mode)}}
	for _, a := range l.Addrs {
		if !a.Addr().IsLinkLocalUnicast() || a.Addr().Is4() {
			v.lines = append(v.lines, a.String())
		}
	}
	for _, p := range l.Programs {
		v.lines = append(v.lines, "eBPF "+p.Name)
	}
	longest := 0
	for _, line := range v.lines {
		longest = max(longest, len(line))
	}
	v.Max = image.Pt(longest*letter+16, len(v.lines)*lineHeight+10)
	return v
}

func (n *space) layout() {
	width, height := len(n.NamespaceInfo.String())*letter+2*margin, headHeight
	for _, row := range n.rows {
		x, tallest := margin, 0
		for _, v := range row {
			v.Rectangle = v.Add(image.Pt(x, height))
			x, tallest = v.Max.X+margin, max(tallest, v.Dy())
		}
		width = max(width, x)
		if tallest > 0 {
			height += tallest + gap
		}
	}
	n.Max = image.Pt(width, height-gap+margin)
}

func (n *space) move(x, y int) {
	n.Rectangle = n.Add(image.Pt(x, y))
	for _, v := range slices.Concat(n.rows[:]...) {
		v.Rectangle = v.Add(n.Min)
	}
}

// place places the namespaces: hosts side by side, and above each the pods that are joined to it first.
func (d *drawing) place() {
	pods, x, y := map[*space][]*space{}, margin, margin // by their host, which may be nil
	for _, n := range d.spaces {
		if n.host {
			continue
		}
		var host *space
		if at := slices.IndexFunc(d.spaces, func(h *space) bool {
			return h.host && d.joined[[2]uint64{h.Inode, n.Inode}]
		}); at >= 0 {
			host = d.spaces[at]
		}
		pods[host] = append(pods[host], n)
		y = max(y, margin+n.Dy()+rowGap)
	}
	row := func(spaces []*space) (end int) {
		end = x
		for _, n := range spaces {
			n.move(end, margin)
			end = n.Max.X + gap
		}
		return end
	}
	for _, h := range d.spaces {
		if h.host {
			slices.SortStableFunc(pods[h], func(a, b *space) int { return cmp.Compare(a.title, b.title) })
			h.move(x, y)
			x = max(h.Max.X+gap, row(pods[h]))
		}
	}
	row(pods[nil])
}

func (n *space) draw(b *strings.Builder) {
	rect(b, "space", n.Rectangle, 6)
	text(b, "name", n.Min.Add(image.Pt(10, 17)), n.title)
	for _, v := range slices.Concat(n.rows[:]...) {
		rect(b, "device", v.Rectangle, 3)
		class := "name"
		for at, line := range v.lines {
			text(b, class, v.Min.Add(image.Pt(8, lineHeight*(at+1))), line)
			class = "soft"
		}
	}
}

func rect(b *strings.Builder, class string, r image.Rectangle, radius int) {
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="%d"/>`+"\n",
		class, r.Min.X, r.Min.Y, r.Dx(), r.Dy(), radius)
}

func text(b *strings.Builder, class string, at image.Point, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, at.X, at.Y, escaped(s))
}

// escaped is a text of a document: XML excludes control characters, and bytes that are not UTF-8.
func escaped(s string) string { return html.EscapeString(Printable(s)) }

// draw joins the lower end of the upper device and the upper end of the lower one; at one height it passes below both.
func (e edge) draw(upper, lower *device) string {
	if upper.Min.Y > lower.Min.Y || upper.Min.Y == lower.Min.Y && upper.Min.X > lower.Min.X {
		upper, lower = lower, upper
	}
	from, to := upper.Min.X+upper.Dx()/2, lower.Min.X+lower.Dx()/2
	path := fmt.Sprintf("M%d %dL%d %d", from, upper.Max.Y, to, lower.Min.Y)
	if upper.Max.Y > lower.Min.Y {
		path = fmt.Sprintf("M%d %dV%dH%dV%d", from, upper.Max.Y, max(upper.Max.Y, lower.Max.Y)+margin/2, to, lower.Max.Y)
	}
	return fmt.Sprintf(`<path class="edge" d="%s" stroke-dasharray="%s"><title>%s</title></path>`+"\n",
		path, e.dash, escaped(e.title))
}
