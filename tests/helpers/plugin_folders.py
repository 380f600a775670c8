"""Folders of plugins: a module, and files of configs."""


def write_plugins(folder, code, files):
    """Writes the code and the `files`, texts by `axis/name`. Returns the word that names them."""
    (folder / "mine.py").write_text(code)
    for name, text in files.items():
        file = folder / "configs" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return f"plugins={folder}"
