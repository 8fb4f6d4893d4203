// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// KeyFile is the name of the file with a node's private key.
const KeyFile = "wireguard.key"

// PrivateKey is the private key of a node's WireGuard device. It is not printed.
type PrivateKey struct{ key wgtypes.Key }

// Format writes a placeholder, whatever the verb.
func (PrivateKey) Format(to fmt.State, _ rune) { _, _ = io.WriteString(to, "(private)") }

// Public returns the public key in base64.
func (k PrivateKey) Public() string { return k.key.PublicKey().String() }

// LoadKey reads the key from the file in a directory, and makes a new one if the file is missing. It refuses a file
// that others than the owner can read.
func LoadKey(dir string) (PrivateKey, error) {
	path := filepath.Join(dir, KeyFile)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return PrivateKey{}, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return PrivateKey{}, fmt.Errorf("%s has mode %v, want a file that its owner alone can read: delete it to get a new key",
			path, info.Mode())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return PrivateKey{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	clamped := key[0]&7 == 0 && key[31]>>6 == 1 // as the kernel has it (RFC 7748, section 5)
	if err != nil || !clamped {                 // the error of the library could quote the file
		return PrivateKey{}, fmt.Errorf("%s is not a WireGuard key: remove it for a new key", path)
	}
	return PrivateKey{key}, nil
}

// makeKey writes a whole file or none.
func makeKey(path string) (_ PrivateKey, err error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return PrivateKey{}, fmt.Errorf("make a WireGuard key: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), KeyFile+".") // with mode 0600
	if err != nil {
		return PrivateKey{}, err
	}
	defer func() { _ = os.Remove(file.Name()) }() // where it was not renamed
	_, err = file.WriteString(key.String() + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	return PrivateKey{key}, err
}
