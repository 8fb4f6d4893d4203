// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// uncompress returns the path of the uncompressed kernel in a bootable image, which is kept beside it. Emulated
// machines need as long to uncompress a kernel as to boot it. QEMU enters an uncompressed kernel at its PVH entry.
// Callers have the lock of the kernels.
func uncompress(ctx context.Context, image string) (string, error) {
	dir, name := filepath.Split(image)
	path := filepath.Join(dir, "vmlinux-"+strings.TrimPrefix(name, "vmlinuz-"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	data, err := os.ReadFile(image)
	if err != nil {
		return "", err
	}
	packed, err := payload(data)
	if err != nil {
		return "", err
	}
	program, err := findTool("zstd")
	if err != nil {
		return "", err
	}
	var kernel bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-dc")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(packed), &kernel
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("uncompress %s: %w", image, err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, kernel.Bytes(), 0o644); err != nil {
		return "", errors.Join(err, os.Remove(temporary))
	}
	return path, os.Rename(temporary, path)
}

// payload returns the kernel in a bootable image of protocol 2.08 or newer that is compressed by zstd. Offsets are from
// the kernel's Documentation/arch/x86/boot.rst.
func payload(image []byte) ([]byte, error) {
	const (
		setupSectors, sector          = 0x1f1, 512
		magic, version, oldest        = 0x202, 0x206, 0x208
		payloadOffset, payloadLength  = 0x248, 0x24c
		headerEnd, sizeAtEnd, minimum = 0x250, 4, 8
	)
	if len(image) < headerEnd || string(image[magic:version]) != "HdrS" ||
		binary.LittleEndian.Uint16(image[version:]) < oldest {
		return nil, errors.New("no bootable image of a kernel")
	}
	begin := (uint64(image[setupSectors])+1)*sector + uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	length := uint64(binary.LittleEndian.Uint32(image[payloadLength:]))
	if length < minimum || begin+length > uint64(len(image)) {
		return nil, errors.New("the image of the kernel is cut off")
	}
	packed := image[begin : begin+length-sizeAtEnd]
	if !bytes.HasPrefix(packed, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil, errors.New("the kernel is not compressed by zstd")
	}
	return packed, nil
}
