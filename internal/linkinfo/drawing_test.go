// SPDX-License-Identifier: Apache-2.0

package linkinfo_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"mustang/internal/linkinfo"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestDrawHostileNames draws devices, programs and namespaces with names that are markup, or no text: pods choose them.
func TestDrawHostileNames(t *testing.T) {
	for _, name := range []string{`</text><script>"'&`, "a\x01b", "a\xffb", "a\x1b[2J", "]]>", "\ufffe"} {
		links := []linkinfo.Link{
			{Device: rtnl.Device{Index: 1, Name: name, Kind: name}, Mode: name, Programs: []linkinfo.Program{{Hook: name, Name: name}}},
			{Device: rtnl.Device{Index: 2, Name: "port", MasterIndex: 1}, Master: name},
		}
		all := []linkinfo.Inventory{{Namespace: linkinfo.NamespaceInfo{Name: name, Inode: 1}, Links: links}}
		var out strings.Builder
		testkit.Succeed(t, linkinfo.WriteSVG(&out, all))
		decoder := xml.NewDecoder(strings.NewReader(out.String()))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%q: %v", name, err)
				break
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "script" {
				t.Errorf("%q is markup of the drawing", name)
			}
		}
	}
}
