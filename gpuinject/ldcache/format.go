package ldcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The new format of ld.so.cache, sysdeps/generic/dl-cache.h of glibc 2.33 and later; before that
// the extension offset was an unused zero.
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

	newHeader = 48
	newEntry  = 24

	endianLittle = 2

	extensionMagic   = 0xeaa42174
	extensionHeader  = 8
	extensionSection = 16
	tagHWCaps        = 1
)

// le is the byte order of every machine that the shim runs on.
var le = binary.LittleEndian

// ParseCache reads a cache of the new format, also after a block of the old one, as ldconfig wrote
// by default before glibc 2.32. The strings of the result share one copy of data.
//
// The data must be a complete, little-endian cache of at most MaxCacheSize bytes, 64k entries, 4
// KiB per string and MaxCacheSize bytes of strings in total, in the order in which a loader
// searches. Anything else is an error. It never panics (attack T10).
func ParseCache(data []byte) (*Cache, error) {
	if len(data) > MaxCacheSize { // guard: parsers: cache size
		return nil, fmt.Errorf("%d bytes, limit %d", len(data), MaxCacheSize)
	}
	p := parser{file: string(data)}
	p.cache = p.file
	if strings.HasPrefix(p.file, magicOld) {
		p.cache = p.file[max(strings.Index(p.file, magicNew), 0):]
	}
	if !strings.HasPrefix(p.cache, magicNew) {
		return nil, errors.New("not a cache of glibc's format 1.1")
	}
	if len(p.cache) < newHeader {
		return nil, errors.New("truncated header")
	}
	if p.cache[28]&1 != 0 {
		return nil, errors.New("wrong byte order")
	}
	c := new(Cache)
	if err := p.entries(c); err != nil {
		return nil, err
	}
	if !slices.IsSortedFunc(c.Entries, compareNames) {
		return nil, errors.New("not in the order in which a loader searches")
	}
	if err := p.extension(c); err != nil {
		return nil, fmt.Errorf("extension: %w", err)
	}
	return c, nil
}

type parser struct {
	file     string // all of it: base of the extension's offsets
	cache    string // from the new magic on: base of the entries' offsets
	expanded int    // bytes of strings handed out so far
}

// u32 reads a number at an offset that the caller has checked.
func u32(s string, off int) uint32 {
	_ = s[off+3]
	return uint32(s[off]) | uint32(s[off+1])<<8 | uint32(s[off+2])<<16 | uint32(s[off+3])<<24
}

// entries reads the table of libraries.
func (p *parser) entries(c *Cache) error {
	n := u32(p.cache, 20)
	if n > maxEntries { // guard: parsers: cache entries
		return fmt.Errorf("%d libraries, limit %d", n, maxEntries)
	}
	table := newHeader + int(n)*newEntry
	if size := u32(p.cache, 24); table+int(size) > len(p.cache) {
		return fmt.Errorf("%d libraries and %d bytes of strings do not fit into the file", n, size)
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
	if n <= 0 {
		return "", fmt.Errorf("empty or unterminated string at %d", off)
	}
	p.expanded += n + 1
	if p.expanded > MaxCacheSize { // guard: parsers: cache strings
		return "", fmt.Errorf("strings expand to more than %d bytes", MaxCacheSize)
	}
	return s[:n], nil
}

// extension reads the names of the glibc-hwcaps directories and ignores other tags, as ld.so does.
// Its offsets count from the start of the file (cache_extension_load in dl-cache.h).
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
	if n > maxHWCaps || uint64(n) > (size-first)/extensionSection {
		return fmt.Errorf("%d sections do not fit into the file", n)
	}
	for i := range int(n) {
		at := int(first) + i*extensionSection
		start, length := uint64(u32(p.file, at+8)), uint64(u32(p.file, at+12))
		if start+length > size {
			return fmt.Errorf("section %d lies outside of the file", i)
		}
		if u32(p.file, at) != tagHWCaps {
			continue
		}
		if start%4 != 0 || length%4 != 0 || length > 4*maxHWCaps {
			return fmt.Errorf("table of hwcaps of %d bytes at %d", length, start)
		}
		if err := p.hwcaps(c, p.file[start:start+length]); err != nil {
			return err
		}
	}
	return nil
}

// hwcaps reads the table of offsets of glibc-hwcaps names. ldconfig counts them from the magic, but
// ld.so from the start of the file (glibc 2.36), so ld.so does not find them after a block of the
// old format. Here they are read as ldconfig meant them.
func (p *parser) hwcaps(c *Cache, table string) error {
	c.HWCaps = nil
	for i := 0; i < len(table); i += 4 {
		name, err := p.str(p.cache, u32(table, i), 0)
		if err != nil {
			return err
		}
		c.HWCaps = append(c.HWCaps, name)
	}
	return nil
}

// Encode returns the cache as a file in the new format only, which glibc has read since 2.2. The
// entries keep their order, which must be the one that ld.so expects. It returns nil if the file
// would exceed the limits of ParseCache. The same content gives the same bytes.
func (c *Cache) Encode() []byte {
	out := make([]byte, newHeader+len(c.Entries)*newEntry)
	copy(out, magicNew)
	le.PutUint32(out[20:], uint32(len(c.Entries)))
	out[28] = endianLittle
	strs := len(out)
	add := func(s string) (offset uint32) {
		offset = uint32(len(out))
		out = append(append(out, s...), 0)
		return offset
	}
	for i, e := range c.Entries {
		name, path := add(e.Name), add(e.Path)
		row := out[newHeader+i*newEntry:][:newEntry]
		le.PutUint32(row, uint32(e.Flags))
		le.PutUint32(row[4:], name)
		le.PutUint32(row[8:], path)
		le.PutUint32(row[12:], e.OSVersion)
		le.PutUint64(row[16:], e.HWCap)
	}
	var table []byte
	for _, h := range c.HWCaps {
		table = le.AppendUint32(table, add(h))
	}
	le.PutUint32(out[24:], uint32(len(out)-strs))
	if len(table) > 0 {
		out = append(out, make([]byte, -len(out)&3)...)
		le.PutUint32(out[32:], uint32(len(out)))
		at := uint32(len(out) + extensionHeader + extensionSection)
		for _, n := range []uint32{extensionMagic, 1, tagHWCaps, 0, at, uint32(len(table))} {
			out = le.AppendUint32(out, n)
		}
		out = append(out, table...)
	}
	if len(c.Entries) > maxEntries || len(out) > MaxCacheSize {
		return nil
	}
	return out
}
