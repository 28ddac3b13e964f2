package ldcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The new format of ld.so.cache, sysdeps/generic/dl-cache.h of glibc 2.33 and
// later; before that the extension offset was an unused zero.
//
//	 0 magic and version   20 bytes
//	20 nlibs               uint32
//	24 len_strings         uint32
//	28 flags               byte; low two bits: 0 unset, 1 invalid, 2 little, 3 big endian
//	32 extension_offset    uint32, from the start of the file, a multiple of 4
//	48 nlibs times         flags int32, key uint32, value uint32, osversion uint32, hwcap uint64
//	   strings             keys and values are offsets from the magic
//	   extension           magic, count, count times: tag, flags, offset, size
const (
	magicOld = "ld.so-1.7.0"
	magicNew = "glibc-ld.so.cache1.1"

	oldHeader = 16 // the magic, padded, and nlibs
	oldEntry  = 12

	newHeader = 48
	newEntry  = 24

	endianMask   = 3
	endianUnset  = 0
	endianLittle = 2

	extensionMagic   = 0xeaa42174
	extensionHeader  = 8
	extensionSection = 16
	tagGenerator     = 0
	tagHWCaps        = 1
)

// le is the byte order of every machine that the shim runs on.
var le = binary.LittleEndian

// ParseCache reads a cache of the new format, also where it follows a block of
// the old one, as ldconfig wrote by default before glibc 2.32. The strings of the
// result share one copy of data.
//
// It is an error when the data is anything else than a complete, little-endian
// cache within MaxCacheSize, 64k entries, 4 KiB per string and MaxCacheSize bytes
// of strings altogether. It never panics (attack T10).
func ParseCache(data []byte) (*Cache, error) {
	if len(data) > MaxCacheSize {
		return nil, fmt.Errorf("ld.so.cache: %d bytes, limit %d", len(data), MaxCacheSize)
	}
	p := parser{file: string(data)}
	if err := p.locate(); err != nil {
		return nil, fmt.Errorf("ld.so.cache: %w", err)
	}
	c := new(Cache)
	if err := p.entries(c); err != nil {
		return nil, fmt.Errorf("ld.so.cache: %w", err)
	}
	if err := p.extension(c); err != nil {
		return nil, fmt.Errorf("ld.so.cache: extension: %w", err)
	}
	return c, nil
}

// parser reads one cache file.
type parser struct {
	file     string // all of it: base of the extension's offsets
	cache    string // from the new magic on: base of the entries' offsets
	expanded int    // bytes of strings handed out so far
}

// u32 reads a number at an offset that was checked before.
func u32(s string, off int) uint32 {
	_ = s[off+3]
	return uint32(s[off]) | uint32(s[off+1])<<8 | uint32(s[off+2])<<16 | uint32(s[off+3])<<24
}

// locate finds the start of the new format.
func (p *parser) locate() error {
	p.cache = p.file
	if strings.HasPrefix(p.file, magicOld) {
		if len(p.file) < oldHeader {
			return errors.New("truncated header")
		}
		n := uint64(u32(p.file, 12))
		if n > uint64(len(p.file)-oldHeader)/oldEntry {
			return fmt.Errorf("%d libraries of the old format do not fit into the file", n)
		}
		// The new magic follows, aligned as the writer's machine aligns a uint64.
		end := oldHeader + int(n)*oldEntry
		for _, off := range []int{(end + 7) &^ 7, (end + 3) &^ 3} {
			if off <= len(p.file) && strings.HasPrefix(p.file[off:], magicNew) {
				p.cache = p.file[off:]
				break
			}
		}
	}
	if !strings.HasPrefix(p.cache, magicNew) {
		return errors.New("not a cache of glibc's format 1.1")
	}
	if len(p.cache) < newHeader {
		return errors.New("truncated header")
	}
	if order := p.cache[28] & endianMask; order != endianUnset && order != endianLittle {
		return errors.New("wrong byte order")
	}
	return nil
}

// entries reads the table of libraries.
func (p *parser) entries(c *Cache) error {
	n := u32(p.cache, 20)
	if n > maxEntries {
		return fmt.Errorf("%d libraries, limit %d", n, maxEntries)
	}
	table := newHeader + int(n)*newEntry
	if table > len(p.cache) {
		return fmt.Errorf("%d libraries do not fit into the file", n)
	}
	if size := u32(p.cache, 24); uint64(size) > uint64(len(p.cache)-table) {
		return fmt.Errorf("%d bytes of strings do not fit into the file", size)
	}
	c.Entries = make([]Entry, n)
	for i := range c.Entries {
		at := newHeader + i*newEntry
		e := &c.Entries[i]
		e.Flags = int32(u32(p.cache, at))
		e.OSVersion = u32(p.cache, at+12)
		e.HWCap = uint64(u32(p.cache, at+16)) | uint64(u32(p.cache, at+20))<<32
		var err error
		if e.Name, err = p.str(p.cache, u32(p.cache, at+4), table); err == nil {
			e.Path, err = p.str(p.cache, u32(p.cache, at+8), table)
		}
		if err != nil {
			return fmt.Errorf("library %d: %w", i, err)
		}
	}
	return nil
}

// str returns the string at off, which may not lie before least.
func (p *parser) str(in string, off uint32, least int) (string, error) {
	if uint64(off) < uint64(least) || uint64(off) >= uint64(len(in)) {
		return "", fmt.Errorf("string offset %d outside of the file", off)
	}
	s := in[off:]
	n := strings.IndexByte(s[:min(len(s), maxString+1)], 0)
	if n < 0 {
		return "", fmt.Errorf("unterminated string at %d", off)
	}
	if n == 0 {
		return "", fmt.Errorf("empty string at %d", off)
	}
	p.expanded += n + 1
	if p.expanded > MaxCacheSize {
		return "", fmt.Errorf("strings expand to more than %d bytes", MaxCacheSize)
	}
	return s[:n], nil
}

// extension reads the generator and the names of the glibc-hwcaps directories,
// the two tags there are; others are ignored, as ld.so does. Its offsets count
// from the start of the file (cache_extension_load in dl-cache.h).
func (p *parser) extension(c *Cache) error {
	off := u32(p.cache, 32)
	if off == 0 {
		return nil
	}
	size := uint64(len(p.file))
	if off%4 != 0 || uint64(off)+extensionHeader > size || u32(p.file, int(off)) != extensionMagic {
		return fmt.Errorf("none at offset %d", off)
	}
	n := u32(p.file, int(off)+4)
	first := uint64(off) + extensionHeader
	if uint64(n) > (size-first)/extensionSection {
		return fmt.Errorf("%d sections do not fit into the file", n)
	}
	if n > maxHWCaps {
		return fmt.Errorf("%d sections, limit %d", n, maxHWCaps)
	}
	for i := range int(n) {
		at := int(first) + i*extensionSection
		start, length := uint64(u32(p.file, at+8)), uint64(u32(p.file, at+12))
		if start+length > size {
			return fmt.Errorf("section %d lies outside of the file", i)
		}
		body := p.file[start : start+length]
		switch u32(p.file, at) {
		case tagGenerator:
			if length > maxString {
				return fmt.Errorf("generator of %d bytes, limit %d", length, maxString)
			}
			c.Generator = body
		case tagHWCaps:
			if start%4 != 0 || length%4 != 0 {
				return errors.New("misaligned table of hwcaps")
			}
			if err := p.hwcaps(c, body); err != nil {
				return err
			}
		}
	}
	return nil
}

// hwcaps reads the table of offsets of glibc-hwcaps names. ldconfig counts them
// from the magic, ld.so from the start of the file (glibc 2.36): behind a block of
// the old format ld.so does not find them, but what ldconfig meant can be read.
func (p *parser) hwcaps(c *Cache, table string) error {
	if len(table)/4 > maxHWCaps {
		return fmt.Errorf("%d hwcaps, limit %d", len(table)/4, maxHWCaps)
	}
	c.HWCaps = make([]string, 0, len(table)/4)
	for i := 0; i < len(table); i += 4 {
		name, err := p.str(p.cache, u32(table, i), 0)
		if err != nil {
			return err
		}
		c.HWCaps = append(c.HWCaps, name)
	}
	return nil
}

// Encode returns the cache as a file of the new format alone, which glibc reads
// since 2.2: entries in the order that ld.so searches (see compareEntries; equal
// ones keep their order), and the extension section where there is a generator
// or a glibc-hwcaps name to write. A name that ends its path shares the path's
// bytes, as ldconfig does it. The same content gives the same bytes.
func (c *Cache) Encode() []byte {
	entries := sorted(c.Entries)
	size := newHeader + len(entries)*newEntry + len(c.Generator) + extensionHeader + 2*extensionSection + 4
	for i := range entries {
		size += len(entries[i].Path) + 1
		if !endsPath(&entries[i]) {
			size += len(entries[i].Name) + 1
		}
	}
	for _, h := range c.HWCaps {
		size += 4 + len(h) + 1
	}
	out := make([]byte, newHeader+len(entries)*newEntry, size)
	copy(out, magicNew)
	le.PutUint32(out[20:], uint32(len(entries)))
	out[28] = endianLittle
	strs := len(out)
	for i := range entries {
		e := &entries[i]
		value := len(out)
		out = append(append(out, e.Path...), 0)
		key := len(out) - 1 - len(e.Name)
		if !endsPath(e) {
			key = len(out)
			out = append(append(out, e.Name...), 0)
		}
		row := out[newHeader+i*newEntry:][:newEntry]
		le.PutUint32(row, uint32(e.Flags))
		le.PutUint32(row[4:], uint32(key))
		le.PutUint32(row[8:], uint32(value))
		le.PutUint32(row[12:], e.OSVersion)
		le.PutUint64(row[16:], e.HWCap)
	}
	names := make([]uint32, len(c.HWCaps))
	for i, h := range c.HWCaps {
		names[i] = uint32(len(out))
		out = append(append(out, h...), 0)
	}
	le.PutUint32(out[24:], uint32(len(out)-strs))
	return c.encodeExtension(out, names)
}

// encodeExtension appends the extension section to a cache, given the offsets of
// the glibc-hwcaps names.
func (c *Cache) encodeExtension(out []byte, names []uint32) []byte {
	count := 0
	if c.Generator != "" {
		count++
	}
	if len(names) > 0 {
		count++
	}
	if count == 0 {
		return out
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	start := len(out)
	le.PutUint32(out[32:], uint32(start))
	out = le.AppendUint32(out, extensionMagic)
	out = le.AppendUint32(out, uint32(count))
	body := start + extensionHeader + count*extensionSection
	section := func(tag, offset, size int) {
		out = le.AppendUint32(out, uint32(tag))
		out = le.AppendUint32(out, 0)
		out = le.AppendUint32(out, uint32(offset))
		out = le.AppendUint32(out, uint32(size))
	}
	if c.Generator != "" {
		section(tagGenerator, body+4*len(names), len(c.Generator))
	}
	if len(names) > 0 {
		section(tagHWCaps, body, 4*len(names))
	}
	for _, n := range names {
		out = le.AppendUint32(out, n)
	}
	return append(out, c.Generator...)
}

// endsPath tells whether the name of an entry is the end of its path.
func endsPath(e *Entry) bool { return strings.HasSuffix(e.Path, e.Name) }
