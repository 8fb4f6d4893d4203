// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestUncompress wants the guests of tests to boot a kernel that is uncompressed.
func TestUncompress(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	testkit.RequireTool(t, "zstd")
	kernel, err := fetchOnce()
	if err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(kernel.Image); name != "vmlinux-"+kernel.Release {
		t.Errorf("guests boot %s", name)
	}
}

// TestUncompressFails has images that nothing can be made of, and leaves no file.
func TestUncompressFails(t *testing.T) {
	testkit.RequireTool(t, "zstd")
	var packed bytes.Buffer
	cmd := exec.Command("zstd", "-c")
	cmd.Stdin, cmd.Stdout = strings.NewReader("no ELF file"), &packed
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	header := make([]byte, 1024) // one sector of set-up code
	copy(header[0x202:], "HdrS")
	header[0x1f1] = 1
	binary.LittleEndian.PutUint16(header[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(header[0x24c:], uint32(packed.Len()+4))
	image := append(append(header, packed.Bytes()...), 0, 0, 0, 0)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"no image":     {[]byte("image"), "no bootable image"},
		"old":          {change(image, 0x206, 7), "no bootable image"},
		"cut off":      {image[:len(image)-8], "cut off"},
		"other packer": {change(image, 1024, 0), "not compressed by zstd"},
		"broken":       {change(image, 1024+6, 0xff), "uncompress"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "vmlinuz-1")
			if err := os.WriteFile(path, c.image, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := uncompress(t.Context(), path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("files %v, %v", entries, err)
			}
		})
	}
}

// change returns data with another byte at an offset.
func change(data []byte, at int, to byte) []byte {
	data = bytes.Clone(data)
	data[at] = to
	return data
}
