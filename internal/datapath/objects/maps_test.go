// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"mustang/internal/testkit"
)

// TestFormats compares the formats in Go with the objects' formats.
func TestFormats(t *testing.T) {
	seen, formats := make(map[string]bool), Sizes{}.formats()
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadTc, loadSocklb} {
		spec, err := load()
		testkit.Succeed(t, err)
		for name, m := range spec.Maps {
			want, pinned := formats[name]
			seen[name] = true
			testkit.Check(t, !pinned || want == (format{m.Type, uintptr(m.KeySize), uintptr(m.ValueSize), want.size}),
				"%s is %v in the object, want %v", name, m, want)
		}
	}
	for name := range formats {
		testkit.Check(t, seen[name], "no object has the map %q", name)
	}
}

// TestDocumentedMaps compares the table of maps in docs/architecture.md with the objects.
func TestDocumentedMaps(t *testing.T) {
	text, err := os.ReadFile("../../../docs/architecture.md")
	testkit.Succeed(t, err)
	documented, have := make(map[string]string), make(map[string]string)
	row := regexp.MustCompile(`(?m)^\| ` + "`" + `(\w+)` + "`" + ` \|[^|]*\|[^|]*\| (\d+ \+ [\d,]+) \|`)
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		documented[match[1]] = strings.ReplaceAll(match[2], ",", "")
	}
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadTc, loadSocklb} {
		spec, err := load()
		testkit.Succeed(t, err)
		for name, m := range spec.Maps {
			if !strings.HasPrefix(name, ".") { // constants
				have[name] = fmt.Sprintf("%d + %d", m.KeySize, m.ValueSize)
			}
		}
	}
	testkit.Check(t, maps.Equal(documented, have),
		"bytes of a key and a value: documented are\n%v, and the objects have\n%v", documented, have)
}

// TestOrderedAdds checks that each atomic addition of the programs returns a value: others are not barriers on arm64.
func TestOrderedAdds(t *testing.T) {
	spec, err := loadTc()
	testkit.Succeed(t, err)
	for name, p := range spec.Programs {
		for i, instruction := range p.Instructions {
			testkit.Check(t, instruction.OpCode.AtomicOp() != asm.AddAtomic, "%s: instruction %d is %v", name, i, instruction)
		}
	}
}

// TestDigests compares the digests in Go with the objects.
func TestDigests(t *testing.T) {
	for want, object := range map[string][]byte{tcDigest: _TcBytes, socklbDigest: _SocklbBytes} {
		sum := sha256.Sum256(object)
		got := hex.EncodeToString(sum[:8])
		testkit.Check(t, got == want, "digest %s, want %s: generate again", want, got)
	}
}

// TestLinkNames parses the name of each link that can be pinned.
func TestLinkNames(t *testing.T) {
	for _, point := range []AttachPoint{AttachHost, AttachTun, AttachNetkit, AttachPod, AttachUplink, AttachCgroup} {
		for _, h := range point.Hooks() {
			want := Link{Hook: h, ID: 1 << 40}
			if point == AttachUplink {
				want.IfIndex = 7
			}
			got, ok := (Link{}).Parse(want.String())
			testkit.Check(t, ok && got == want, "%s: %+v, %v; want %+v", want, got, ok, want)
		}
	}
	for _, name := range []string{
		"", "-", "3", "3-host", "3-host-connect4", "x-host-from_pod", "3-uplink-from_uplink", "3-cgroup-connect4",
		"03-host-from_pod",
		"cgroup-x-connect4", "cgroup-7-connect5", "cgroup-7", "cgroup-", "cgroup-7-from_pod",
		"uplink-1-from_uplink", "uplink-1-2-from_pod", "uplink-1-x-from_uplink", "uplink-1--2-from_uplink",
	} {
		k, ok := (Link{}).Parse(name)
		testkit.Check(t, !ok, "%q is parsed as %+v", name, k)
	}
}
